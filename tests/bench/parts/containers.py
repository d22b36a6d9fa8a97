"""Small images of this machine's programs, and the time from exec to the first instruction in a container."""

import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import ContainerRequest, Invocation, engine_for

VARIABLES = {"PATH": "/usr/bin:/bin", "HOME": "/root"}
#: The first instruction: a shell of the container that writes one byte.
COMMAND = ("/bin/sh", "-c", "echo x")


def make_root(root: Path) -> None:
    """Unpack an image that holds a shell and the libraries that it needs."""
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "etc"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    shell = os.path.realpath("/bin/sh")
    shutil.copy(shell, root / "usr/bin/sh")
    listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+) \(0x", listed):
        folder = root / os.path.realpath(os.path.dirname(library)).lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(library), folder / os.path.basename(library))
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def pack(root: Path, image: Path) -> str:
    """Make a SquashFS of a folder, uncompressed, which is quick and makes its size that of its files."""
    options = ["-quiet", "-no-progress", "-all-root", "-noI", "-noD", "-noF", "-noX", "-no-duplicates"]
    subprocess.run(["mksquashfs", root, image, *options], check=True, stdout=subprocess.DEVNULL)
    return str(image)


def rendered(image: str, scratch: Path, python: str) -> tuple[Invocation, float]:
    """Render `COMMAND` in an image, or on the host where it is empty; also the seconds that took."""
    edf = Edf(name="bench", path=None, image=image)
    request = ContainerRequest(
        edf=edf, command=COMMAND, environment=VARIABLES, workdir="/", scratch=str(scratch)
    )
    start = time.perf_counter()
    invocation = engine_for(edf, "bubblewrap" if image else "").render(request, python=python)
    return invocation, time.perf_counter() - start


def first_instruction(argv: Sequence[str], environment: Mapping[str, str]) -> float:
    """Give the seconds from the exec of an argv to the first byte that its command writes."""
    start = time.perf_counter()
    with subprocess.Popen(argv, env=dict(environment), cwd="/", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    if said != b"x" or process.returncode:
        raise SystemExit(f"{argv[0]} ended with status {process.returncode}.")
    return seconds


def medians(
    ours: tuple[Sequence[str], Mapping[str, str]],
    peer: tuple[Sequence[str], Mapping[str, str]],
    rounds: int,
) -> tuple[float, float]:
    """Time two argvs in turns, and give the median of each after one round to warm up."""
    seconds = [(first_instruction(*ours), first_instruction(*peer)) for _ in range(rounds + 1)][1:]
    return statistics.median(each[0] for each in seconds), statistics.median(each[1] for each in seconds)
