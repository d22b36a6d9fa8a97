"""Storage classes of a site: ``fast`` on each node, ``shared`` by all nodes, ``keep`` for what must last.

Each class is a directory. Staging copies data to ``fast``. Paths of data, checkpoints and services may begin
with a class, such as ``shared:imagenet.sqsh`` or ``keep:runs/7``. The directory of each class is configured
by the first of these that names it:

1. ``$GIPFEL_STORAGE_FAST``, ``$GIPFEL_STORAGE_SHARED``, ``$GIPFEL_STORAGE_KEEP``
2. the user's ``~/.gipfel/storage.yaml``
3. the site's, which ``$GIPFEL_STORAGE`` names
4. the defaults: ``fast`` is the first of ``$SLURM_TMPDIR``, ``$TMPDIR`` and ``/tmp`` that is on a local disk,
   ``shared`` is ``$SCRATCH`` or the home directory, ``keep`` is the home directory

A file has a key for each class, with a directory, and optionally with the ``StorageClass`` on Kubernetes::

    fast: /local/$USER
    shared: {directory: /scratch/$USER, kubernetes: cephfs}
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from .definition_files import DefinitionFile
from .model import Frozen, GipfelError, OneLine
from .staged import local_directory, resolve_directory, stores

ClassName = Literal["fast", "shared", "keep"]
CLASS_NAMES: tuple[ClassName, ...] = get_args(ClassName)
#: Variable with the path of the site's file, and prefix of the variables of the classes.
VARIABLE = "GIPFEL_STORAGE"
_NAMED = re.compile(rf"({'|'.join(CLASS_NAMES)}):(.*)", re.DOTALL)
_Template = Annotated[OneLine, Field(pattern=r"^(?:[/~$].*)?$", max_length=1000)]
_TEMPLATE: TypeAdapter[str] = TypeAdapter(_Template)


class StorageClass(Frozen):
    """A directory, which may begin with ``~`` and contain variables, and the class's name on Kubernetes."""

    directory: _Template = ""
    kubernetes: Annotated[str, Field(pattern=r"^(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)?$")] = ""


def _from_text(value: Any) -> Any:
    return {"directory": value} if isinstance(value, str) else value


_Entry = Annotated[StorageClass, BeforeValidator(_from_text)]


class StorageFile(Frozen):
    """Content of ``storage.yaml``."""

    fast: _Entry = StorageClass()
    shared: _Entry = StorageClass()
    keep: _Entry = StorageClass()


_FILE = DefinitionFile(
    StorageFile, "configuration of storage classes", "Write one of the keys fast, shared and keep."
)


class StorageClasses(StorageFile):
    """Storage classes as configured; ``origins`` has the file or variable that configured each one."""

    origins: dict[ClassName, str] = Field(default={})

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> "StorageClasses":
        """Return what the variables, the user's file and the site's file configure.

        Raises
        ------
        GipfelError
            A file or a variable is not valid.
        """
        found: dict[ClassName, StorageClass] = {}
        origins: dict[ClassName, str] = {}
        for path, required in _files(environment):
            if required or path.exists():
                content = _FILE.read(path)
                for name in content.model_fields_set:
                    key = TypeAdapter(ClassName).validate_python(name)
                    found.setdefault(key, getattr(content, name))
                    origins.setdefault(key, str(path))
        for name in CLASS_NAMES:
            variable = f"{VARIABLE}_{name.upper()}"
            if chosen := environment.get(variable, ""):
                try:
                    directory = _TEMPLATE.validate_python(chosen)
                except ValidationError as error:
                    raise GipfelError(
                        f"{variable} is not a directory: {chosen[:200]!r}.", "Give an absolute path."
                    ) from error
                found[name] = found.get(name, StorageClass()).model_copy(update={"directory": directory})
                origins[name] = variable
        return cls(**{str(name): each for name, each in found.items()}, origins=origins)

    def directory(self, name: ClassName, environment: Mapping[str, str]) -> Path | None:
        """Return the directory of a class; None for ``fast`` if no local disk is known.

        Raises
        ------
        GipfelError
            It contains a variable that is not set.
        """
        entry: StorageClass = getattr(self, name)
        if not entry.directory:
            return _default(name, environment)
        try:
            return resolve_directory(entry.directory, environment)
        except ValueError as error:
            raise GipfelError(
                f"The storage class {name} is {entry.directory}, but {error}.",
                f"Correct it in {self.origins.get(name, 'storage.yaml')}.",
            ) from error


def _files(environment: Mapping[str, str]) -> tuple[tuple[Path, bool], ...]:
    """Return the user's file, and the site's, which must exist."""
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - as a text
    own = (Path(home) / ".gipfel" / "storage.yaml", False)
    site = environment.get(VARIABLE, "")
    return (own, (Path(site), True)) if site else (own,)


def _default(name: ClassName, environment: Mapping[str, str]) -> Path | None:
    if name == "fast":
        return local_directory(environment)
    scratch = environment.get("SCRATCH", "")
    if name == "shared" and scratch.startswith("/"):
        return Path(scratch)
    return resolve_directory("~", environment)


def resolve_path(text: str, environment: Mapping[str, str]) -> str:
    """Return a path with the directory of the class instead of a prefix ``shared:``, ``keep:`` or ``fast:``.

    Raises
    ------
    GipfelError
        The class has no directory, or the path leads out of it.
    """
    named = _NAMED.fullmatch(text)
    if named is None:
        return text
    name, rest = TypeAdapter(ClassName).validate_python(named[1]), named[2].lstrip("/")
    if ".." in rest.split("/"):
        raise GipfelError(f"{text[:200]!r} leads out of the storage class {name}.", "Write the path in full.")
    directory = StorageClasses.load(environment).directory(name, environment)
    if directory is None:
        raise GipfelError(
            f"The storage class {name} has no directory here: no local disk is known.",
            f"Set {VARIABLE}_{name.upper()}.",
        )
    return str(directory / rest)


def node_stores(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the stores of staged copies on this node, with ``nvme`` in the directory of ``fast``."""
    return stores(StorageClasses.load(environment).directory("fast", environment))
