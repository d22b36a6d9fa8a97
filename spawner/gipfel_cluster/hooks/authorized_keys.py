"""Public keys out of a file that may hold anything."""

import base64
import binascii
import os
import re
import stat

from ..model import GipfelError, one_line

_LARGEST = 64 << 10  # bytes
_MOST = 64
_TYPES = (
    "ssh-ed25519", "sk-ssh-ed25519@openssh.com", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521", "sk-ecdsa-sha2-nistp256@openssh.com", "ssh-rsa",
)  # fmt: skip
_LINE = re.compile(
    rb"[ \t]*(" + b"|".join(re.escape(name.encode()) for name in _TYPES) + rb")[ \t]+([A-Za-z0-9+/]+={0,2})"
    rb"(?:[ \t].*)?",
    re.DOTALL,
)
#: What a key may do: no agent, no X11, no ~/.ssh/rc.
_OPTIONS = "restrict,pty,port-forwarding"


def read_keys(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the public keys of a file, as lines for ``authorized_keys`` and notes about what was left out.

    A line is taken apart and written anew, so that nothing of it but type and key gets any further: no
    options, no comment. A line with options is left out, because its key is meant for less.

    Raises
    ------
    GipfelError
        The file can't be read, others may write to it, or it holds no public key.
    """
    if not path.startswith("/"):
        raise GipfelError("authorize_ssh_key is not the absolute path of a public key's file", "Give one.")
    keys: dict[str, None] = {}
    wrong: list[int] = []
    for number, line in enumerate(_content(path).split(b"\n"), 1):
        if not line.strip() or line.lstrip().startswith(b"#"):
            continue
        key = _key(line.rstrip(b"\r"))
        if key is None:
            wrong.append(number)
        elif len(keys) < _MOST:
            keys[f"{_OPTIONS} {key}"] = None
    if not keys:
        raise GipfelError(f"{one_line(path)} holds no public key", "Give the file that ends in .pub.")
    notes: tuple[str, ...] = ()
    if wrong:
        shown = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
        word = "line" if len(wrong) == 1 else "lines"
        notes = (f"{word} {shown} of {one_line(path)}: left out, no plain public key.",)
    return tuple(keys), notes


def _key(line: bytes) -> str | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    try:
        content = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        return None
    # The key names its own type, behind its length in four bytes.
    length = int.from_bytes(content[:4], "big")
    if content[4 : 4 + length] != match[1] or len(content) <= 4 + length:
        return None
    return f"{match[1].decode()} {base64.b64encode(content).decode()}"


def _content(path: str) -> bytes:
    shown = one_line(path)
    try:
        # A pipe or a device must not keep the job waiting.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GipfelError(f"{shown} can't be read ({reason})", "Give the path of a public key.") from error
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise GipfelError(f"{shown} is no regular file", "Give the path of a public key.")
        # Who can write to it decides who gets into the container.
        if about.st_uid not in {0, os.geteuid()} or about.st_mode & 0o022:
            raise GipfelError(
                f"others than you may write to {shown}", "Take a file of your own: chmod go-w, or a copy."
            )
        content = os.read(file, _LARGEST + 1)
    finally:
        os.close(file)
    if len(content) > _LARGEST:
        raise GipfelError(f"{shown} has more than {_LARGEST >> 10} KiB", "Give the path of a public key.")
    return content
