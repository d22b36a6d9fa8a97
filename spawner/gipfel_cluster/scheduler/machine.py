"""The machine of a scheduler: run its commands without a shell, and detect Slurm, CPUs, memory and GPUs."""

import asyncio
import contextlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ..model import Frozen, GipfelError, ReportOSError
from .notation import GpuCount

_PIECE_BYTES = 1 << 16
_MAX_BYTES = 4 << 20
_END_SECONDS = 5.0
_T = TypeVar("_T")
#: Variables with which Slurm's commands find their cluster.
SLURM_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
# The paths that distributions' packages use, and where slurmd and sackd of a configless cluster store the
# file.
_FILES = ("etc/slurm/slurm.conf", "etc/slurm-llnl/slurm.conf", "run/slurm/conf/slurm.conf")
# The options of the two daemons that fetch a configuration: `--conf-server HOST`.
_DAEMON_OPTIONS = ("etc/default/slurmd", "etc/default/sackd", "etc/sysconfig/slurmd", "etc/sysconfig/sackd")
_MAX_FILE_BYTES = 1 << 16
_VERSION_S = 10.0
# The message of Slurm 20.02 or newer if it finds no configuration, not even an SRV record.
_FOUND_NOTHING = "DNS SRV lookup failed"
_UNCONFIGURED = "Slurm's commands are installed but not configured (no slurm.conf, SLURM_CONF or DNS record)."
_NVIDIA_SMI_S = 10.0


class CommandResult(Frozen):
    """The output and exit status of a command."""

    code: int
    output: str
    errors: str


class OutputLimitError(GipfelError):
    """A command was killed because it printed too much; whether it took effect is unknown."""


async def run_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    limit: float,
    stdin: str = "",
    max_bytes: int = _MAX_BYTES,
) -> CommandResult:
    """Run a command to its end, and return its output.

    Parameters
    ----------
    environment
        All environment variables of the command.
    limit
        Time limit in seconds.
    stdin
        Text for the command's standard input.
    max_bytes
        Limit for standard output and for standard error, each.

    Raises
    ------
    GipfelError
        The program is missing, or was killed because it printed too much.
    TimeoutError
        The command was killed at its time limit.
    """
    with ReportOSError(f"{argv[0]} can't be run", "Install it, or add its directory to PATH."):
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )

    def kill() -> None:
        # The whole process group, because the program may be a child of sudo or runuser.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    try:
        transfers = asyncio.gather(
            _read(process.stdout, max_bytes, kill),
            _read(process.stderr, max_bytes, kill),
            process.wait(),
            _write(process.stdin, stdin.encode()),
        )
        # Mark an exception as retrieved: the caller gets it, and asyncio would log it a second time.
        transfers.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the result.
        async with asyncio.timeout(limit):
            output, errors, *_ = await transfers
    finally:
        if process.returncode is None:
            kill()
            # asyncio sees the end only after the pipes are read. A process of another user may not be
            # killable.
            rest = asyncio.gather(
                _read(process.stdout, 0, kill), _read(process.stderr, 0, kill), process.wait()
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await rest
    if max(len(output), len(errors)) > max_bytes:
        raise OutputLimitError(
            f"{argv[0]} printed more than {max_bytes} bytes and was killed.",
            "Report this to the cluster's administrators.",
        )
    return CommandResult(
        code=process.returncode or 0,
        output=output.decode(errors="replace"),
        errors=errors.decode(errors="replace").strip(),
    )


async def _read(stream: asyncio.StreamReader | None, max_bytes: int, stop: Callable[[], None]) -> bytes:
    """Read to the end; beyond the limit call ``stop``, and return one byte more than the limit."""
    content = bytearray()
    while stream and (piece := await stream.read(_PIECE_BYTES)):
        content += piece[: max_bytes + 1 - len(content)]
        if len(content) > max_bytes:
            stop()
    return bytes(content)


async def _write(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    if stream is None:
        return
    # A command that does not read its input is not an error.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(content)
        await stream.drain()
    stream.close()


def current_user_name() -> str:
    """Return the name of this process's unix user, or its uid if it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def run_as_prefix(user: str, exec_prefix: str = "") -> tuple[str, ...]:
    """Return the words that, in front of an argv, run it as `user` with the same environment.

    Parameters
    ----------
    user
        A unix user name; the result is empty for this process's own user and for an empty name.
    exec_prefix
        Command with the fields ``{username}``, ``{uid}`` and ``{gid}``. It is split into words before the
        fields are replaced, so that a name can't become two words. Empty: ``runuser`` for root, else
        ``sudo``. A hub that is not root but has CAP_SETUID and CAP_SETGID can use ``setpriv --reuid={uid}
        --regid={gid} --init-groups --``.

    Raises
    ------
    GipfelError
        The prefix has another field, or it needs the uid of a user who does not exist.
    """
    if user in {"", current_user_name()}:
        return ()
    if not exec_prefix:
        root = "runuser -u {username} --"
        exec_prefix = root if os.getuid() == 0 else "sudo --non-interactive --preserve-env -u {username} --"
    fields = {"username": user}
    if "{uid}" in exec_prefix or "{gid}" in exec_prefix:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise GipfelError(f"There is no unix user {user!r} on this machine.") from None
        fields |= {"uid": str(entry.pw_uid), "gid": str(entry.pw_gid)}
    try:
        return tuple(word.format_map(fields) for word in shlex.split(exec_prefix))
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise GipfelError(
            f"The exec_prefix {exec_prefix!r} can't be used: {error}.",
            "Use the fields {username}, {uid} and {gid} only.",
        ) from error


def run_sync(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine; run it in a thread if an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "gipfel-ask") as pool:
        return pool.submit(asyncio.run, coroutine).result()


class SlurmPresence(Frozen):
    """Slurm on this machine: its commands, and the source of its configuration.

    ``source`` is the file, variable or program that configures Slurm. It is empty if there is no
    configuration; ``problem`` then explains this in a sentence.
    """

    commands: bool
    source: str = ""
    problem: str = ""

    @property
    def configured(self) -> bool:
        """Return whether Slurm is configured, even if its controller does not answer."""
        return self.commands and bool(self.source)


def slurm_presence(environment: Mapping[str, str], *, root: Path = Path("/")) -> SlurmPresence:
    """Return whether Slurm is configured on this machine, without contacting its controller.

    If neither variables nor the usual files configure it, run ``sbatch --version``. It reads the
    configuration first, knows the path that it was built with, and looks for the SRV record of a configless
    cluster. A broken configuration, or one whose controller does not answer, counts as configured: using it
    must be an error, instead of running jobs on this machine.

    Parameters
    ----------
    environment
        Provides ``PATH``, ``LD_LIBRARY_PATH`` and `SLURM_VARIABLES`.
    root
        Root of the file system, for tests.
    """
    program = shutil.which("sbatch", path=environment.get("PATH", os.defpath))
    if program is None:
        return SlurmPresence(commands=False, problem="Slurm's commands are not on PATH.")
    for name in SLURM_VARIABLES:
        if environment.get(name):
            return SlurmPresence(commands=True, source=name)
    found = next((str(root / name) for name in _FILES if (root / name).exists()), "")
    found = found or next((str(root / name) for name in _DAEMON_OPTIONS if _names_server(root / name)), "")
    return SlurmPresence(commands=True, source=found) if found else _ask_sbatch(program, environment)


def scheduler_of(environment: Mapping[str, str]) -> str:
    """Return the name of the scheduler of this process's job: ``slurm`` or ``local``."""
    return "slurm" if "SLURM_JOB_ID" in environment else "local"


def _ask_sbatch(program: str, environment: Mapping[str, str]) -> SlurmPresence:
    variables = {name: environment[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in environment}
    try:
        answer = subprocess.run(
            (program, "--version"),
            # Without a network, the DNS lookup would take many seconds.
            env={**variables, "LC_ALL": "C", "RES_OPTIONS": "timeout:2 attempts:1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        # It may be a wrapper that forwards to another machine. Using the scheduler will report the problem.
        return SlurmPresence(commands=True, source=f"{program}, which does not answer")
    except OSError as error:
        return SlurmPresence(commands=True, problem=f"{program} can't be run: {error.strerror}.")
    errors = answer.stderr[:_MAX_FILE_BYTES].decode(errors="replace")
    if answer.returncode != 0 and _FOUND_NOTHING in errors:
        return SlurmPresence(commands=True, problem=_UNCONFIGURED)
    return SlurmPresence(commands=True, source=program)


def _names_server(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_FILE_BYTES).splitlines()
    except OSError:
        return False
    return any(b"--conf-server" in line and not line.lstrip().startswith(b"#") for line in lines)


class LocalGpu(Frozen):
    """A GPU as listed by the driver; ``type`` is a short name, ``busy`` True if a process computes on it."""

    index: str
    type: str = ""
    busy: bool = False


async def local_gpus(environment: Mapping[str, str]) -> tuple[LocalGpu, ...]:
    """Return the GPUs of this machine; none without a driver."""
    rows = await _ask_nvidia_smi("--query-gpu=index,uuid,name", environment)
    if not rows:
        return ()
    busy = {row[0] for row in await _ask_nvidia_smi("--query-compute-apps=gpu_uuid,pid", environment)}
    cells = [(*row, "", "")[:3] for row in rows]
    return tuple(
        LocalGpu(index=index, type=short_gpu_name(name), busy=uuid in busy)
        for index, uuid, name in cells
        if index.isdecimal()
    )


def gpus_are_known(gpus: Sequence[LocalGpu], *, devices: Path = Path("/dev")) -> bool:
    """Return whether the list of GPUs is complete.

    It is not if ``nvidia-smi`` listed none although a driver is loaded: a broken one, or AMD's.
    """
    return bool(gpus) or not any((devices / name).exists() for name in ("nvidiactl", "kfd"))


def count_gpus(gpus: Sequence[LocalGpu]) -> tuple[GpuCount, ...]:
    """Count the GPUs of each type."""
    types = list(dict.fromkeys(each.type for each in gpus))
    return tuple(GpuCount(type=kind, count=sum(each.type == kind for each in gpus)) for kind in types)


def short_gpu_name(product: str) -> str:
    """Return the usual short name of a product: ``h200`` for ``NVIDIA H200``."""
    words = product.lower().replace("/", " ").split()
    brands = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu"}
    return next((word for word in words if word not in brands), "")


def local_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def local_memory() -> int:
    """Return the memory of this machine in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


async def _ask_nvidia_smi(query: str, environment: Mapping[str, str]) -> list[list[str]]:
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return []
    try:
        argv = (program, query, "--format=csv,noheader")
        result = await run_command(argv, environment=environment, limit=_NVIDIA_SMI_S)
    except (GipfelError, TimeoutError):
        return []
    if result.code:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in result.output.splitlines() if line.strip()]
