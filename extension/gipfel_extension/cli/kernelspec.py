"""Kernelspecs that ``gipfel kernel`` writes: where Jupyter finds them, and what stands in them."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import read_regular

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE = "kernel.json"
_MOST_BYTES = 1 << 20
# Jupyter puts its own interpreter for the first word, and its own prefix for {prefix}.
_ENTER = ("python3", "-I", "-m", "gipfel_cluster.broker.kernel")
_START = "{prefix}/kernels/start.py"
_OF_THE_SERVER = frozenset(("python3", "python", "gipfel", "image"))


class Origin(Frozen):
    """What a kernel of ours runs in: another EDF's container, or a virtual environment."""

    edf: Line = ""
    python: Line = ""
    venv: Line = ""

    def __str__(self) -> str:
        if self.edf:
            return f"EDF {self.edf}, Python: {self.python}"
        return f"virtual environment {self.venv}"


class _Metadata(Frozen, extra="allow"):
    gipfel: Origin


class KernelSpec(Frozen, extra="ignore"):
    """The content of a ``kernel.json`` of ours."""

    argv: tuple[str, ...]
    display_name: str
    language: str = "python"
    interrupt_mode: Literal["signal"] = "signal"
    env: dict[str, str] = Field(default_factory=dict)
    metadata: _Metadata

    @property
    def origin(self) -> Origin:
        """What it runs in."""
        return self.metadata.gipfel


def edf_kernel(edf: str, python: str, display_name: str) -> KernelSpec:
    """Describe a kernel in another EDF's container, where `python` is image, runtime or a path."""
    argv = (*_ENTER, "--edf", edf, "--python", python, "-f", "{connection_file}")
    return KernelSpec(
        argv=argv, display_name=display_name, metadata=_Metadata(gipfel=Origin(edf=edf, python=python))
    )


def venv_kernel(venv: Path, display_name: str, *, started: bool) -> KernelSpec:
    """Describe a kernel of a virtual environment, `started` by the runtime where it has no ipykernel."""
    first = (_START,) if started else ("-m", "ipykernel_launcher")
    return KernelSpec(
        argv=(str(venv / "bin" / "python"), *first, "-f", "{connection_file}"),
        display_name=display_name,
        env={"VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:${{PATH}}"},
        metadata=_Metadata(gipfel=Origin(venv=str(venv))),
    )


def kernel_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """List where a user's servers look for kernels: with the home folder mounted, and without it."""
    home = Path(environment.get("HOME") or Path.home())
    own = Path(environment.get("JUPYTER_DATA_DIR") or home / ".local" / "share" / "jupyter")
    apart = home / ".gipfel" / "server" / "data"
    return tuple(dict.fromkeys(folder / "kernels" for folder in (own, apart)))


def name_for(text: str) -> str:
    """Make a kernel's name of a text."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:64] or "kernel"


def write_kernel(name: str, spec: KernelSpec, folders: tuple[Path, ...]) -> list[Path]:
    """Write a kernelspec into every folder; one of ours is replaced.

    Raises
    ------
    GipfelError
        The name can't be one, belongs to another kernel, or the folder can't be written to.
    """
    if not _NAME.fullmatch(name) or name in _OF_THE_SERVER:
        raise GipfelError(
            f"{name!r} can't name a kernel of yours.", "Give --name with letters, digits, '.', '-' and '_'."
        )
    for folder in folders:
        if (folder / name).exists() and _read(folder / name) is None:
            raise GipfelError(
                f"{folder / name} is a kernel that gipfel did not make.", "Give another --name."
            )
    content = json.dumps(spec.model_dump(mode="json"), indent=1) + "\n"
    for folder in folders:
        try:
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / name / _FILE, content)
        except OSError as error:
            raise GipfelError(
                f"The kernel can't be written to {folder / name}: {error.strerror}.",
                "Set JUPYTER_DATA_DIR to a folder that you can write to.",
            ) from error
    return [folder / name for folder in folders]


def our_kernels(folders: tuple[Path, ...]) -> Iterator[tuple[str, KernelSpec]]:
    """List the kernels of ours, each name once."""
    seen = set[str]()
    for folder in folders:
        for each in sorted(folder.iterdir()) if folder.is_dir() else ():
            spec = _read(each)
            if spec is not None and each.name not in seen:
                seen.add(each.name)
                yield each.name, spec


def remove_kernel(name: str, folders: tuple[Path, ...]) -> None:
    """Remove a kernel of ours from every folder.

    Raises
    ------
    GipfelError
        There is none of this name, or it is another's.
    """
    known = dict(our_kernels(folders))
    if name not in known:
        there = _NAME.fullmatch(name) and any((folder / name).exists() for folder in folders)
        problem = (
            f"The kernel {name!r} is not gipfel's." if there else f"There is no kernel {name!r} of gipfel's."
        )
        have = ", ".join(sorted(known))
        raise GipfelError(problem, f"There are: {have}." if have else "See `jupyter kernelspec list`.")
    for folder in folders:
        if _read(folder / name) is not None:
            shutil.rmtree(folder / name)


def _read(folder: Path) -> KernelSpec | None:
    """A kernel of ours; None where it is another's or can't be read."""
    try:
        return KernelSpec.model_validate_json(read_regular(folder / _FILE, _MOST_BYTES, follow=True))
    except (OSError, ValidationError):
        return None
