"""A built runtime: the directory or file with interpreter, server and libc that is mounted into images.

`check_runtime` starts one: its server must import, and only its own libraries may be loaded.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import field_validator

from ..edf.image import check_image, read_image_file
from ..edf.model import Mount
from ..model import Frozen, GipfelError, OneLine
from ..regular_files import read_regular
from .distributions import installed_version

#: The file with the description of a runtime, in its top directory.
DESCRIPTION = "runtime.json"
_DESCRIPTION_BYTES = 1 << 20  # bytes that are read of it
_CHECK_SECONDS = 300
_CHECKED_MODULES = (
    "ssl", "sqlite3", "ctypes", "jupyterlab.labapp", "jupyterhub.singleuser", "pyarrow", "zmq",
    "ipykernel.kernelapp", "psutil", "pynvml", "gipfel_cluster", "gipfel_extension", "gipfel_widgets",
)  # fmt: skip
_CHECK_PROGRAM = """\
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
with open("/proc/self/maps") as maps:
    mapped = sorted({line.split(None, 5)[5].strip() for line in maps if ".so" in line})
print(json.dumps({"prefix": sys.prefix, "mapped": mapped}))
"""


class Description(Frozen):
    """The content of ``runtime.json``.

    ``key`` is a digest of everything the runtime was built from except the directories of ``kernels``, which
    map names to their own keys; ``distributions`` maps names to versions, ``programs`` names to paths below
    ``prefix``.
    """

    prefix: OneLine
    version: OneLine
    arch: OneLine
    key: OneLine
    distributions: Mapping[str, str]
    programs: Mapping[str, OneLine] = {}
    kernels: Mapping[str, OneLine] = {}

    @field_validator("prefix")
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        if not value.startswith("/") or ".." in Path(value).parts:
            raise ValueError("is not an absolute path")
        return value


class Runtime(Frozen):
    """A built runtime: its interpreter on this machine and in a container.

    ``root`` is the directory or ``.sqsh`` file on this machine, ``prefix`` the path that it is built for and
    must be mounted at. ``python`` is the path of the interpreter in a container, ``arch`` the machine type of
    ``uname -m``. ``programs`` are other programs: name -> path below ``prefix``.
    """

    root: OneLine
    prefix: OneLine
    python: OneLine
    version: OneLine
    arch: OneLine
    programs: Mapping[str, OneLine] = {}

    @classmethod
    def load(cls, path: str | Path) -> "Runtime":
        """Read the description of a built runtime.

        Raises
        ------
        GipfelError
            The path is not a runtime, or one for another architecture.
        """
        root = Path(path).absolute()
        description = read_description(root)
        machine = platform.machine()
        if description.arch != machine:
            raise GipfelError(
                f"The runtime {root} is for {description.arch}, this machine is {machine}.",
                f"Build one on a {machine} machine with `gipfel runtime build`.",
            )
        return cls.of(root, description)

    @classmethod
    def of(cls, root: Path, description: Description) -> "Runtime":
        """Return the runtime with this description whose directory or file is `root`."""
        return cls(
            root=str(root),
            prefix=description.prefix,
            python=f"{description.prefix}/bin/python3",
            version=description.version,
            arch=description.arch,
            programs=description.programs,
        )

    @classmethod
    def from_current_interpreter(cls) -> "Runtime":
        """Return this interpreter and its environment as a runtime, for servers without a container."""
        return cls(
            root=sys.prefix,
            prefix=sys.prefix,
            python=sys.executable,
            version=installed_version("gipfel") or "unknown",
            arch=platform.machine(),
        )

    def program(self, name: str) -> str | None:
        """Return the path of a program such as ``sshd`` in the container; None if the runtime has none."""
        path = self.programs.get(name)
        return f"{self.prefix}/{path}" if path else None

    @property
    def mount(self) -> Mount:
        """Return the read-only mount of the runtime."""
        flags = ("ro",) if Path(self.root).is_dir() else ("sqsh",)
        return Mount(source=self.root, destination=self.prefix, flags=flags)

    @property
    def host_python(self) -> str | None:
        """Return the interpreter's path if the host can start it; None if the runtime needs a container."""
        # A file can't be run on the host, even if another runtime is at its prefix.
        return self.python if Path(self.root).is_dir() and os.access(self.python, os.X_OK) else None


def read_description(root: Path) -> Description:
    """Read ``runtime.json`` of a runtime's directory or file.

    Raises
    ------
    GipfelError
        It is missing, unreadable or not valid for this version.
    """
    try:
        return Description.model_validate_json(
            _read_from_image(root)
            if root.is_file()
            else read_regular(root / DESCRIPTION, _DESCRIPTION_BYTES, follow=True)
        )
    except FileNotFoundError as error:
        raise GipfelError(
            f"There is no runtime in {root}.", f"Build one with `gipfel runtime build {root}`."
        ) from error
    except OSError as error:
        raise GipfelError(
            f"The runtime {root} can't be read: {error.strerror}.", "Make it readable for its users."
        ) from error
    except ValueError as error:
        raise GipfelError(
            f"{root / DESCRIPTION} is not valid for this version of Gipfel.",
            f"Build the runtime again with `gipfel runtime build {root}`.",
        ) from error


def check_runtime(runtime: Runtime, *, at: Path | None = None) -> None:
    """Check that the runtime's interpreter imports a server's and a kernel's modules in an empty environment.

    Parameters
    ----------
    at
        Where the runtime is now, if it has not been installed at ``root`` or ``prefix`` yet.

    Raises
    ------
    GipfelError
        A module does not import, or a library from outside the runtime was loaded.
    """
    folder = at or Path(runtime.root)
    command = [*interpreter(runtime, folder), "-I", "-c", _CHECK_PROGRAM, *_CHECKED_MODULES]
    advice = f"Build it again with `gipfel runtime build {runtime.root}`."
    try:
        done = subprocess.run(
            command,
            env={"PATH": os.defpath, "HOME": "/nonexistent"},
            capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise GipfelError(
            f"The runtime {folder} did not finish its check within {_CHECK_SECONDS} s.", advice
        ) from error
    except OSError as error:
        raise GipfelError(f"The runtime {folder} does not start: {error.strerror}.", advice) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise GipfelError(f"The runtime {folder} does not work: {last}.", advice)
    if not (folder / DESCRIPTION).is_file():
        return
    mapped = json.loads(done.stdout.splitlines()[-1])["mapped"]
    if foreign := [path for path in mapped if not Path(path).is_relative_to(folder.resolve())]:
        raise GipfelError(f"The runtime {folder} loads {foreign[0]}, which an image may not have.", advice)


def interpreter(runtime: Runtime, folder: Path) -> tuple[str, ...]:
    """Return the argv that starts the runtime's interpreter from a directory that need not be its prefix."""
    if str(folder) == runtime.prefix:
        return (runtime.python,)
    loaders = sorted((folder / "lib").glob("ld-*.so*"))
    if not loaders:
        raise GipfelError(
            f"There is no runtime in {folder}.", f"Build one with `gipfel runtime build {folder}`."
        )
    library = str(folder / "lib")
    return (str(loaders[0]), "--library-path", library, str(folder / "bin" / "python3"))


def _read_from_image(root: Path) -> bytes:
    check_image(root)
    if shutil.which("unsquashfs") is None:
        raise GipfelError(
            f"The runtime {root} can't be read without unsquashfs.",
            "Install the package squashfs-tools on this machine.",
        )
    content = read_image_file(root, (DESCRIPTION,), _DESCRIPTION_BYTES)
    if content is None:
        raise FileNotFoundError(DESCRIPTION)
    return content
