"""A runtime: the folder or file with interpreter, server and libc that is mounted into images."""

import importlib.metadata
import os
import platform
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError, field_validator

from ..edf.image import check_image
from ..edf.inside import read_inside
from ..edf.model import Mount
from ..model import Frozen, GipfelError, Line

#: What a runtime says about itself, at its top.
DESCRIPTION = "runtime.json"
_MOST = 1 << 20  # bytes of it


class Description(Frozen):
    """The content of ``runtime.json``.

    ``key`` names everything it was made from but the folders of ``kernels``, whose names have keys of their
    own; ``distributions`` maps names to versions, ``programs`` names to paths below ``prefix``.
    """

    prefix: Line
    version: Line
    arch: Line
    key: Line
    distributions: Mapping[str, str]
    programs: Mapping[str, Line] = {}
    kernels: Mapping[str, Line] = {}

    @field_validator("prefix")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        if not value.startswith("/") or ".." in Path(value).parts:
            raise ValueError("is no absolute path")
        return value


class Runtime(Frozen):
    """Where a server's interpreter is, on this machine and in a container.

    ``root`` is the folder or ``.sqsh`` file on this machine, ``prefix`` where it believes to be: it must be
    mounted there. ``python`` is the interpreter as a container sees it, ``arch`` a machine name as
    ``uname -m`` has it. ``programs`` are others that it brings: name -> path below ``prefix``.
    """

    root: Line
    prefix: Line
    python: Line
    version: Line
    arch: Line
    programs: Mapping[str, Line] = {}

    @classmethod
    def load(cls, path: str | Path) -> "Runtime":
        """Read what a built runtime says about itself.

        Raises
        ------
        GipfelError
            The folder or file holds no runtime, or one for another architecture.
        """
        root = Path(path).absolute()
        described = read_description(root)
        machine = platform.machine()
        if described.arch != machine:
            raise GipfelError(
                f"The runtime {root} is for {described.arch}, this machine is {machine}.",
                f"Build one for it on a {machine} machine with `gipfel runtime build`.",
            )
        return cls(
            root=str(root),
            prefix=described.prefix,
            python=f"{described.prefix}/bin/python3",
            version=described.version,
            arch=described.arch,
            programs=described.programs,
        )

    @classmethod
    def here(cls) -> "Runtime":
        """Describe this very interpreter and its environment, for servers that run without a container."""
        try:
            version = importlib.metadata.version("gipfel")
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"
        return cls(
            root=sys.prefix,
            prefix=sys.prefix,
            python=sys.executable,
            version=version,
            arch=platform.machine(),
        )

    def program(self, name: str) -> str | None:
        """Path of a program in the container, such as ``sshd``; None where the runtime does not bring it."""
        path = self.programs.get(name)
        return f"{self.prefix}/{path}" if path else None

    @property
    def mount(self) -> Mount:
        """The read-only mount that brings the runtime into a container."""
        flags = ("ro",) if Path(self.root).is_dir() else ("sqsh",)
        return Mount(source=self.root, destination=self.prefix, flags=flags)

    @property
    def host_python(self) -> str | None:
        """The interpreter as the host itself can start it; None where it is seen in containers only."""
        # A file is no folder to start from, even where an older one is unpacked at its prefix.
        return self.python if Path(self.root).is_dir() and os.access(self.python, os.X_OK) else None


def read_description(root: Path) -> Description:
    """Read ``runtime.json`` of a runtime's folder or file.

    Raises
    ------
    GipfelError
        It is missing, unreadable or not what this version writes.
    """
    try:
        content = _inside_file(root) if root.is_file() else _in_folder(root / DESCRIPTION)
        described = Description.model_validate_json(content)
    except FileNotFoundError as error:
        raise GipfelError(
            f"There is no runtime in {root}.", f"Build one with `gipfel runtime build {root}`."
        ) from error
    except OSError as error:
        raise GipfelError(
            f"The runtime {root} can't be read: {error.strerror}.", "Make it readable for its users."
        ) from error
    except (ValueError, ValidationError) as error:
        raise GipfelError(
            f"{root / DESCRIPTION} is not what this version of Gipfel writes.",
            f"Build the runtime again with `gipfel runtime build {root}`.",
        ) from error
    return described


def _in_folder(path: Path) -> bytes:
    # Neither waited for nor read without end, whatever stands there.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(path)
        return file.read(_MOST)


def _inside_file(root: Path) -> bytes:
    check_image(root)
    if shutil.which("unsquashfs") is None:
        raise GipfelError(
            f"The runtime {root} can't be read without unsquashfs.",
            "Install the package squashfs-tools on this machine.",
        )
    content = read_inside(root, (DESCRIPTION,), _MOST)
    if content is None:
        raise FileNotFoundError(DESCRIPTION)
    return content
