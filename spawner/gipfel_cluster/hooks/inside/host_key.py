"""The key that a user's containers are recognized by: made once and kept, as ``known_hosts`` needs it."""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

NAME = "host_ed25519"
_SECONDS = 20


def host_key(folder: Path, keygen: str) -> bytes:
    """Read the user's host key, or make it; two nodes that make one at once end with the same.

    Raises
    ------
    OSError
        The folder can't be written to, or there is no ``ssh-keygen``.
    subprocess.SubprocessError
        ``ssh-keygen`` failed.
    """
    kept = folder / NAME
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            fresh = Path(beside, NAME)
            make_key(fresh, keygen)
            with contextlib.suppress(FileExistsError):
                os.link(fresh, kept)
    return kept.read_bytes()


def make_key(path: Path, keygen: str) -> None:
    """Make a key pair without a passphrase; the public half is beside it, in ``.pub``."""
    subprocess.run(
        [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "gipfel", "-f", str(path)],
        env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_SECONDS,
        check=True,
    )


def public_half(content: bytes, keygen: str) -> str:
    """``ssh-ed25519 AAAA…`` of a private key, for ``known_hosts``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, NAME)
        path.touch(mode=0o600)
        path.write_bytes(content)
        done = subprocess.run(
            [keygen, "-y", "-f", str(path)],
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    return " ".join(done.stdout.split()[:2])
