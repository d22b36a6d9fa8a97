"""Reading a dump, which is a pickle, without running anything that stands in it."""

import io
import pickle
import pickletools
from typing import Any

#: A dump holds plain values only: none of these opcodes, which name or call code.
_REFUSED = frozenset(
    (
        "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2",
        "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER",
    )
)  # fmt: skip
_MOST_BYTES = 256 << 20


class _Nothing(pickle.Unpickler):
    """Finds no class."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - the unpickler's
        raise pickle.UnpicklingError("it names something outside of itself")


def plain_value(content: bytes) -> Any:
    """The value of a pickle of numbers, texts, lists and dictionaries.

    Raises
    ------
    ValueError
        It holds anything else, is too large, or is no pickle.
    """
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
    try:
        for opcode, _, _ in pickletools.genops(content):
            if opcode.name in _REFUSED:
                raise ValueError(f"it holds {opcode.name}, which is no plain value")  # noqa: TRY301
        return _Nothing(io.BytesIO(content)).load()
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"it is no pickle of plain values ({type(error).__name__})") from error
