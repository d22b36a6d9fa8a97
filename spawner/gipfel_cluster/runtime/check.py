"""Does a runtime work: its server starts, and nothing but its own libraries is loaded."""

import json
import os
import subprocess
from pathlib import Path

from ..model import GipfelError
from .model import DESCRIPTION, Runtime

_SECONDS = 300
_MODULES = (
    "ssl", "sqlite3", "ctypes", "jupyterlab.labapp", "jupyterhub.singleuser", "pyarrow", "zmq",
    "ipykernel.kernelapp", "psutil", "pynvml", "gipfel_cluster", "gipfel_extension", "gipfel_widgets",
)  # fmt: skip
_PROGRAM = """\
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
with open("/proc/self/maps") as maps:
    mapped = sorted({line.split(None, 5)[5].strip() for line in maps if ".so" in line})
print(json.dumps({"prefix": sys.prefix, "mapped": mapped}))
"""


def check_runtime(runtime: Runtime, *, at: Path | None = None) -> None:
    """Import what a server and a kernel need, with the runtime's own interpreter and an empty environment.

    Parameters
    ----------
    at
        Where the runtime's folder is now, when it is neither at ``root`` nor at ``prefix`` yet.

    Raises
    ------
    GipfelError
        A module does not import, or a library from outside the runtime was loaded.
    """
    folder = at or Path(runtime.root)
    command = [*interpreter(runtime, folder), "-I", "-c", _PROGRAM, *_MODULES]
    advice = f"Build it again with `gipfel runtime build {runtime.root}`."
    try:
        done = subprocess.run(
            command,
            env={"PATH": os.defpath, "HOME": "/nonexistent"},
            capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise GipfelError(f"The runtime {folder} did not answer within {_SECONDS} s.", advice) from error
    except OSError as error:
        raise GipfelError(f"The runtime {folder} does not start: {error.strerror}.", advice) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise GipfelError(f"The runtime {folder} does not work: {last}.", advice)
    if not (folder / DESCRIPTION).is_file():
        return
    mapped = json.loads(done.stdout.splitlines()[-1])["mapped"]
    foreign = [path for path in mapped if not Path(path).is_relative_to(folder.resolve())]
    if foreign:
        raise GipfelError(f"The runtime {folder} loads {foreign[0]}, which an image may not have.", advice)


def interpreter(runtime: Runtime, folder: Path) -> tuple[str, ...]:
    """How the runtime's interpreter is started from a folder that need not be its prefix."""
    if str(folder) == runtime.prefix:
        return (runtime.python,)
    loaders = sorted((folder / "lib").glob("ld-*.so*"))
    if not loaders:
        raise GipfelError(
            f"There is no runtime in {folder}.", f"Build one with `gipfel runtime build {folder}`."
        )
    library = str(folder / "lib")
    return (str(loaders[0]), "--library-path", library, str(folder / "bin" / "python3"))
