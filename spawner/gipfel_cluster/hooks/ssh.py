"""``com.hooks.ssh``: an ssh server in the running container, for the owner of a key."""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..edf.model import Mount
from ..engines.protocol import ContainerRequest
from ..model import GipfelError, one_line
from ..regular_files import open_regular
from ..runs import make_private
from ..runtime.model import Runtime
from .inside.serve import SshServerSpec
from .inside.start import VARIABLE
from .protocol import HookContext, HookResult, Node

_KEY_FILE_BYTES = 64 << 10  # bytes
_MAX_KEYS = 64
_KEY_TYPES = (
    "ssh-ed25519", "sk-ssh-ed25519@openssh.com", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521", "sk-ecdsa-sha2-nistp256@openssh.com", "ssh-rsa",
)  # fmt: skip
_KEY_LINE = re.compile(
    rb"[ \t]*("
    + b"|".join(re.escape(name.encode()) for name in _KEY_TYPES)
    + rb")[ \t]+([A-Za-z0-9+/]+={0,2})"
    rb"(?:[ \t].*)?",
    re.DOTALL,
)
#: Options of each key in ``authorized_keys``: a terminal and port forwarding, but no agent, X11 or ~/.ssh/rc.
_KEY_OPTIONS = "restrict,pty,port-forwarding"
#: The default port of the Container Engine. Source: CE documentation, ssh hook.
DEFAULT_PORT = 15263
# With `-m` or the site module the command would wait until 50 modules are loaded.
_START_PROGRAM = (
    "import sys; sys.path.append('%s/lib/python%d.%d/site-packages' % (sys.prefix, *sys.version_info[:2]));"
    "from gipfel_cluster.hooks.inside.start import main; sys.exit(main(sys.argv[1:]))"
)
_START_ARGUMENTS = ("-I", "-S", "-c", _START_PROGRAM)
_REQUIRED_PROGRAMS = ("sshd", "ssh-keygen")
_PROGRAMS = (*_REQUIRED_PROGRAMS, "sftp-server", "sshd-session", "sshd-auth")


class Ssh:
    """Runs the runtime's ``sshd`` as the user while the command runs."""

    name = "ssh"

    def apply(
        self, request: ContainerRequest, settings: Mapping[str, str], context: HookContext, node: Node
    ) -> HookResult:
        """Start the server before the command; if that is not possible, only add a note with the reason."""
        notes: list[str] = []
        try:
            runtime = _usable_runtime(context, node)
            keys, skipped = read_keys(settings.get("authorize_ssh_key", ""))
            notes += [f"com.hooks.ssh.authorize_ssh_key: {each}" for each in skipped]
            spec = SshServerSpec(
                programs={name: path for name in _PROGRAMS if (path := runtime.program(name))},
                keys=keys,
                port=_port(settings.get("port", "")),
                folder=_host_key_directory(request.environment.get("HOME", ""), make=not request.render_only),
                node=request.environment.get("GIPFEL_NODE", "") or node.name(),
                run_directory=request.environment.get("GIPFEL_RUN", ""),
                pid_file=settings.get("pidfile_container", ""),
            )
        except GipfelError as error:
            note = f"com.hooks.ssh has no effect: {error.problem}. {error.fix}"
            return HookResult(request=request, notes=(*notes, note))
        if "sftp-server" not in spec.programs:
            notes.append("com.hooks.ssh: the runtime has no sftp-server, so sftp and scp do not work.")
        if settings.get("pidfile_host"):
            notes.append(
                "com.hooks.ssh.pidfile_host has no effect: the container does not know its process ids "
                "on the host."
            )
        return HookResult(request=_with_server(request, runtime, spec), notes=tuple(notes))


def _usable_runtime(context: HookContext, node: Node) -> Runtime:
    runtime = context.runtime
    if context.engine == "host":
        raise GipfelError("the engine host starts no container", "Log in to the node itself.")
    if node.user_id() == 0:
        raise GipfelError("the server does not run as root", "Start the job as a plain user.")
    if runtime is None:
        raise GipfelError("no runtime is mounted into this container", "Start it as a job.")
    if missing := [name for name in _REQUIRED_PROGRAMS if runtime.program(name) is None]:
        raise GipfelError(
            f"the runtime {runtime.root} has no {' and no '.join(missing)}",
            "Build it on a machine that has OpenSSH's server.",
        )
    return runtime


def _with_server(request: ContainerRequest, runtime: Runtime, spec: SshServerSpec) -> ContainerRequest:
    mounts = [Mount(source=spec.folder, destination=spec.folder)]
    if not any(mount.destination == runtime.prefix for mount in request.mounts):
        mounts.append(runtime.mount)
    return request.model_copy(
        update={
            "command": (runtime.python, *_START_ARGUMENTS, *request.command),
            "mounts": (*request.mounts, *mounts),
            "environment": {**request.environment, os.fsdecode(VARIABLE): spec.to_json()},
        }
    )


def _port(text: str) -> int:
    if not text:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1024 <= int(text) <= 65535):
        raise GipfelError(f"{text!r} is not a port that a user may open", "Give one from 1024 to 65535.")
    return int(text)


def _host_key_directory(home: str, *, make: bool) -> str:
    """Return ``~/.gipfel/ssh``, which contains the host key and is mounted; with ``make`` create it."""
    try:
        folder = Path(home or Path.home(), ".gipfel", "ssh")
    except RuntimeError as error:
        raise GipfelError("there is no home directory to keep the server's key in", "Set HOME.") from error
    if not make:
        return str(folder)
    try:
        make_private(folder)
        folder.chmod(0o700)
    except OSError as error:
        raise GipfelError(
            f"{folder}, which keeps the server's key, can't be created ({error.strerror})",
            "Check its permissions and the space on the disk.",
        ) from error
    return str(folder)


def read_keys(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the public keys of a file as lines for ``authorized_keys``, and notes about skipped lines.

    Lines are rewritten with type and key only, without options and comments. A line with options is skipped,
    because its author restricted the key.

    Raises
    ------
    GipfelError
        The file can't be read, others may write to it, or it holds no public key.
    """
    if not path.startswith("/"):
        raise GipfelError(
            "authorize_ssh_key is not the absolute path of a public key file",
            'Set com.hooks.ssh.authorize_ssh_key = "/absolute/path/of/key.pub".',
        )
    keys: dict[str, None] = {}
    skipped: list[int] = []
    for number, line in enumerate(_content(path).split(b"\n"), 1):
        if not line.strip() or line.lstrip().startswith(b"#"):
            continue
        key = _key(line.rstrip(b"\r"))
        if key is None:
            skipped.append(number)
        elif len(keys) < _MAX_KEYS:
            keys[f"{_KEY_OPTIONS} {key}"] = None
    if not keys:
        raise GipfelError(f"{one_line(path)} holds no public key", "Give the file that ends in .pub.")
    notes: tuple[str, ...] = ()
    if skipped:
        numbers = ", ".join(map(str, skipped[:5])) + (", …" if len(skipped) > 5 else "")
        noun = "line" if len(skipped) == 1 else "lines"
        notes = (f"skipped {noun} {numbers} of {one_line(path)}: not a plain public key.",)
    return tuple(keys), notes


def _key(line: bytes) -> str | None:
    match = _KEY_LINE.fullmatch(line)
    if match is None:
        return None
    try:
        content = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        return None
    # The key begins with its type, preceded by the length in four bytes.
    length = int.from_bytes(content[:4], "big")
    if content[4 : 4 + length] != match[1] or len(content) <= 4 + length:
        return None
    return f"{match[1].decode()} {base64.b64encode(content).decode()}"


def _content(path: str) -> bytes:
    printable = one_line(path)
    try:
        # A pipe or a device must not block the job.
        with open_regular(Path(path), follow=True) as file:
            about = os.fstat(file.fileno())
            content = file.read(_KEY_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GipfelError(
            f"{printable} can't be read ({reason})", "Give the path of a public key."
        ) from error
    # Everyone who can write to the file can log in to the container.
    if about.st_uid not in {0, os.geteuid()} or about.st_mode & 0o022:
        raise GipfelError(
            f"other users may write to {printable}", "Change that with chmod go-w, or use a copy."
        )
    if len(content) > _KEY_FILE_BYTES:
        raise GipfelError(
            f"{printable} has more than {_KEY_FILE_BYTES >> 10} KiB", "Give the path of a public key."
        )
    return content
