"""An EDF's keys and values as TOML text; the standard library only reads it."""

import json
import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def edf_toml(values: Mapping[str, object]) -> str:
    """Write an EDF: scalars and lists first, then its tables, in the order that they are given in.

    Raises
    ------
    ValueError
        A value is of a kind that an EDF has not.
    """
    lines = [f"{_key(key)} = {_value(each)}" for key, each in values.items() if not isinstance(each, Mapping)]
    for key, table in values.items():
        if isinstance(table, Mapping) and table:
            lines += _table((key,), table)
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(path: tuple[str, ...], table: Mapping[str, object]) -> list[str]:
    plain = {key: each for key, each in table.items() if not isinstance(each, Mapping)}
    lines = ["", f"[{'.'.join(map(_key, path))}]"] if plain else []
    lines += [f"{_key(key)} = {_value(each)}" for key, each in plain.items()]
    for key, each in table.items():
        if isinstance(each, Mapping):
            lines += _table((*path, key), each)
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        inside = [_value(each) for each in value]
        return (
            f"[{', '.join(inside)}]"
            if len(inside) < 2
            else "[\n" + "".join(f"  {each},\n" for each in inside) + "]"
        )
    raise ValueError(f"an EDF holds no {type(value).__name__}")


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped, and surrogates, which it has not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
