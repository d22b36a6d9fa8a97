"""Convert a checkpoint to safetensors, in a sandbox without network and without writable files.

The checkpoint is scanned first; a malicious one is not opened. The program in the sandbox (`convert_program`)
writes to a pipe. This process writes the file, bounds its size, and checks its header before renaming it.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.regular_files import open_regular

from ..model import worst
from .tree import TreeScan

_PROGRAM = Path(__file__).with_name("convert_program.py")
_LIMIT_S = 3600.0
_CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 100 << 20
#: Largest ratio of the converted tensors' size to the file's, which may be compressed or share storage
#: between tensors; and the bytes that are always allowed.
_MAX_GROWTH, _LEAST_BYTES = 20, 64 << 20
#: Exit status of the program if torch can't be imported.
_NO_TORCH = 3


class Conversion(Frozen):
    """A converted checkpoint.

    ``size`` is in bytes. ``not_tensors`` counts the values that safetensors can't hold, and ``examples``
    names some of them.
    """

    path: str
    tensors: int
    size: int
    not_tensors: int
    examples: str = ""


def sandbox_command(python: str, source: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the argv that converts a file in a sandbox.

    Raises
    ------
    GipfelError
        bubblewrap is not installed.
    """
    bwrap = shutil.which("bwrap", path=environment.get("PATH"))
    if bwrap is None:
        raise GipfelError("There is no bubblewrap for a sandbox.", "Install it: apt-get install bubblewrap.")
    home = environment.get("HOME", "")
    hidden = ("--tmpfs", home) if home.startswith("/") and home != "/" and not _needs(home, python) else ()
    return (
        bwrap,
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),  # noqa: S108
        *hidden,
        *("--ro-bind", str(_PROGRAM), "/tmp/convert_program.py"),  # noqa: S108
        *("--ro-bind", str(source), f"/tmp/model{source.suffix}"),  # noqa: S108
        *("--remount-ro", "/tmp", "--remount-ro", "/dev", "--chdir", "/"),  # noqa: S108
        "--clearenv",
        *("--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LC_ALL", "C.UTF-8"),
        *(python, "-I", "/tmp/convert_program.py", f"/tmp/model{source.suffix}"),  # noqa: S108
    )


def _needs(home: str, python: str) -> bool:
    """Return whether the interpreter or its packages are below a directory."""
    return any(Path(each).resolve().is_relative_to(home) for each in (python, sys.prefix, sys.base_prefix))


def convert(
    source: Path, target: Path, environment: Mapping[str, str], python: str = sys.executable
) -> Conversion:
    """Convert a checkpoint.

    Raises
    ------
    GipfelError
        The checkpoint is malicious or can't be read, the target exists, or bubblewrap or torch is missing.
    """
    if not source.is_file():
        raise GipfelError(f"There is no file {source}.", "Give a checkpoint.")
    if target.exists():
        raise GipfelError(f"{target} exists.", "Give another name with -o.")
    verdict = worst(item.verdict for item in TreeScan().items(source))
    if verdict == "malicious":
        raise GipfelError(f"{source} is malicious.", "See `gipfel scan`, and delete it.")
    most = max(_LEAST_BYTES, _MAX_GROWTH * source.stat().st_size)
    part = target.with_name(f".{target.name}.part")
    try:
        _run(sandbox_command(python, source.resolve(), environment), part, most, source)
        made = _checked(part, target)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return made


def _run(argv: tuple[str, ...], part: Path, most: int, source: Path) -> None:
    """Run the program and copy its output into a new file of at most `most` bytes."""
    with part.open("xb") as file:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}
        )
        timer = threading.Timer(_LIMIT_S, process.kill)
        timer.start()
        problem: list[bytes] = []
        reader = threading.Thread(target=_read_problem, args=(process, problem), daemon=True)
        reader.start()
        try:
            size = 0
            while piece := os.read(process.stdout.fileno(), _CHUNK_BYTES):  # type: ignore[union-attr]
                size += len(piece)
                if size > most:
                    raise GipfelError(f"{source} grows beyond {most >> 20} MiB.", "Split it first.")
                file.write(piece)
            status = process.wait()
        finally:
            timer.cancel()
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            reader.join()
    if status:
        lines = b"".join(problem).decode(errors="replace").strip().splitlines()
        why = one_line(lines[-1])[:300] if lines else f"status {status}"
        fix = "Install torch, or run `gipfel` of an environment that has it." if status == _NO_TORCH else ""
        raise GipfelError(f"{source} can't be converted: {why}.", fix or "See `gipfel scan`.")


def _read_problem(process: "subprocess.Popen[bytes]", problem: list[bytes]) -> None:
    while piece := os.read(process.stderr.fileno(), 1 << 16):  # type: ignore[union-attr]
        problem[:] = [b"".join((*problem, piece))[-4096:]]


def _checked(part: Path, target: Path) -> Conversion:
    """Check a converted file and return its content: the checkpoint may have hijacked the program."""
    size = part.stat().st_size
    try:
        with open_regular(part) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError("its header is too long")  # noqa: TRY301
            header = json.loads(file.read(length))
        about = header.pop("__metadata__")
        ends = [int(each["data_offsets"][1]) for each in header.values()]
        if max(ends, default=0) != size - 8 - length:
            raise ValueError("its tensors don't fill it")  # noqa: TRY301
        return Conversion(
            path=str(target),
            tensors=len(header),
            size=size,
            not_tensors=int(about["not_tensors"]),
            examples=one_line(str(about["examples"])),
        )
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise GipfelError(
            f"What was converted is not valid: {error}.", "Don't use this checkpoint."
        ) from error
