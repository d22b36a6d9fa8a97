"""Where a protocol is: a path, a file beside the notebook, the user's own, or a shipped one."""

from collections.abc import Mapping
from pathlib import Path

from .protocol import VettingProtocol
from .protocol_load import load_protocol, shipped_protocols

_SUFFIXES = ("", ".yaml", ".yml")


def own_protocols(environment: Mapping[str, str]) -> Path:
    """The folder of the user's own protocols, ``~/.gipfel/protocols``."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "protocols"


def find_protocol(name: str, *, directory: Path, environment: Mapping[str, str]) -> VettingProtocol:
    """The protocol of a path or a name, which is looked for here, in the user's folder, among the shipped.

    Raises
    ------
    GipfelError
        As of `load_protocol`.
    """
    if "/" not in name and "\0" not in name:
        for folder in (directory, own_protocols(environment)):
            for suffix in _SUFFIXES:
                path = folder / f"{name}{suffix}"
                # A file without any suffix is a protocol only where it is asked for by its path.
                if path.is_file() and path.suffix:
                    return load_protocol(path)
        return load_protocol(name)
    return load_protocol(Path(directory, Path(name).expanduser()) if "\0" not in name else name)


def known_protocols(environment: Mapping[str, str]) -> dict[str, str]:
    """Names of protocols with where each one is, the first found of each name."""
    found: dict[str, str] = {}
    own = own_protocols(environment)
    for path in sorted(own.glob("*.y*ml")) if own.is_dir() else ():
        found.setdefault(path.stem, str(path))
    for name in shipped_protocols():
        found.setdefault(name, "shipped")
    return found
