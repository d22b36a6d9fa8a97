"""Values as YAML: what a user typed or keeps in a file, and how values travel to the job."""

import os
import stat
from typing import Any

from gipfel_cluster.model import GipfelError, one_line

_LONGEST_FILE = 1 << 20
# With every alias written out, as a cell and its notebook hold them.
_MOST_VALUES = 100_000
# PyYAML writes them as they are, and reads them as the end of a line.
_READ_AS_BREAKS = ("\x85", "\u2028", "\u2029")


def to_yaml(value: Any) -> str:
    """A value as one YAML text, which keeps what JSON can't: numbers that are none, and infinity."""
    text = _dump(value, plain=True)
    if any(each in text for each in _READ_AS_BREAKS):
        text = _dump(value, plain=False)
    # A plain scalar comes with the mark of a document's end.
    return text.removesuffix("\n...\n").removesuffix("\n")


def from_yaml(text: str) -> Any:
    """The value of `to_yaml`; dates stay text, as papermill reads them."""
    import yaml  # noqa: PLC0415
    from papermill.iorw import NoDatesSafeLoader  # noqa: PLC0415 - a second

    from ...shallow_yaml import Shallow  # noqa: PLC0415

    class Loader(Shallow, NoDatesSafeLoader):  # type: ignore[misc]
        """Papermill's, for texts that may be made to cost much."""

    return yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader


def read_mapping(text: str, what: str) -> dict[str, Any]:
    """Names and values of a YAML text.

    Raises
    ------
    GipfelError
        It is no YAML mapping, or its values can't be written into a cell.
    """
    import yaml  # noqa: PLC0415

    try:
        found = from_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        why = one_line(str(error))[:160]
        raise GipfelError(f"{what} is no YAML: {why}.", "Write lines such as 'lr: 0.1'.") from error
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise GipfelError(f"{what} does not map names to values.", "Write lines such as 'lr: 0.1'.")
    for name, value in found.items():
        check_size(name, value)
    return found


def check_size(name: str, value: Any) -> None:
    """See that a value can be written out: a few aliases of YAML can stand for more than a memory holds.

    Raises
    ------
    GipfelError
        It holds itself, a number of thousands of digits, or too many values.
    """
    try:
        count = _count(value, {})
    except (RecursionError, ValueError):
        raise GipfelError(
            f"The value of {name!r} can't be written out: it holds itself, or a number that is too long.",
            "Put it into a file and give its path.",
        ) from None
    if count > _MOST_VALUES:
        raise GipfelError(
            f"The value of {name!r} holds {count:.3g} values, at most {_MOST_VALUES} can be given.",
            "Put them into a file and give its path.",
        )


def read_file(path: str) -> str:
    """The text of a file of parameters; a pipe is read too.

    Raises
    ------
    GipfelError
        It can't be read, is no text, or is longer than 1 MiB.
    """
    check = "Check the path."
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as typed
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
                raise GipfelError(f"The file of parameters {path} is a device.", check)
            content = file.read(_LONGEST_FILE + 1)
        text = content.decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise GipfelError(f"The file of parameters {path} can't be read: {why}.", check) from error
    if len(content) > _LONGEST_FILE:
        raise GipfelError(
            f"The file of parameters {path} is longer than 1 MiB.", "Give the path of large data as a value."
        )
    return text


def _dump(value: Any, *, plain: bool) -> str:
    import yaml  # noqa: PLC0415 - only where parameters are given

    return str(yaml.safe_dump(value, default_flow_style=True, allow_unicode=plain, width=2**30))


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values one has inside, each as often as it is written out; each is looked at once."""
    if isinstance(value, int):
        str(value)
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in known:
        known[id(value)] = -1
        inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(each, known) for each in inside)
    if known[id(value)] < 0:
        raise ValueError("holds itself")
    return known[id(value)]
