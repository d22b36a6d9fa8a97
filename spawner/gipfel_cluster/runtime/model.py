"""A runtime: the folder with interpreter, server and libc that is mounted into images."""

import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from ..edf.model import Mount
from ..model import Frozen, GipfelError, Line

#: What a runtime's folder says about itself.
DESCRIPTION = "runtime.json"


class Description(Frozen):
    """The content of ``runtime.json``.

    ``key`` names everything the folder was made from; ``distributions`` maps names to versions.
    """

    prefix: Line
    version: Line
    arch: Line
    key: Line
    distributions: Mapping[str, str]


class Runtime(Frozen):
    """Where a server's interpreter is, on this machine and in a container.

    ``root`` is the folder on this machine, ``prefix`` where it believes to be: it must be mounted there.
    ``python`` is the interpreter as a container sees it, ``arch`` a machine name as ``uname -m`` has it.
    """

    root: Line
    prefix: Line
    python: Line
    version: Line
    arch: Line

    @classmethod
    def load(cls, path: str | Path) -> "Runtime":
        """Read what a built runtime says about itself.

        Raises
        ------
        GipfelError
            The folder holds no runtime, or one for another architecture.
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

    @property
    def mount(self) -> Mount:
        """The read-only mount that brings the runtime into a container."""
        return Mount(source=self.root, destination=self.prefix, flags=("ro",))


def read_description(root: Path) -> Description:
    """Read ``runtime.json`` of a runtime's folder.

    Raises
    ------
    GipfelError
        The file is missing, unreadable or not what this version writes.
    """
    try:
        return Description.model_validate(json.loads((root / DESCRIPTION).read_bytes()))
    except FileNotFoundError as error:
        raise GipfelError(
            f"There is no runtime in {root}.", f"Build one with `gipfel runtime build {root}`."
        ) from error
    except OSError as error:
        raise GipfelError(
            f"The runtime {root} can't be read: {error.strerror}.", "Make the folder readable for its users."
        ) from error
    except (ValueError, ValidationError) as error:
        raise GipfelError(
            f"{root / DESCRIPTION} is not what this version of Gipfel writes.",
            f"Build the runtime again with `gipfel runtime build {root}`.",
        ) from error
