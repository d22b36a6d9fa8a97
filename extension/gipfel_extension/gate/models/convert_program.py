"""Write the tensors of a checkpoint as safetensors to standard output: the program in the sandbox.

``python -I convert_program.py FILE`` runs in a Python that has torch, in a sandbox without network and
without writable files, since the checkpoint is not trusted and torch's restricted unpickler may have a hole.
It imports nothing from Gipfel. The output is as the safetensors specification says: the 8-byte length of a
JSON header, the header ``{"NAME": {"dtype", "shape", "data_offsets"}}``, and the tensors' bytes.
"""

import json
import os
import struct
import sys
from collections.abc import Iterator
from typing import Any

_MOST_TENSORS = 1_000_000
_MAX_DEPTH = 16
_MAX_LEFT_OUT = 20
_CHUNK_BYTES = 64 << 20
#: safetensors' data types by torch's names.
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


class ConversionError(Exception):
    """The file can't be converted; the message is one line."""


def read_tensors(path: str) -> tuple[dict[str, Any], list[str]]:
    """Return the tensors of a file by dotted name, and the names of values that are not tensors."""
    import torch  # noqa: PLC0415 - slow, and may be missing

    if path.endswith((".npy", ".npz")):
        import numpy  # noqa: PLC0415

        with open(path, "rb") as file:  # noqa: PTH123 - imports nothing but what is needed
            loaded = numpy.load(file, allow_pickle=False)
            arrays = dict(loaded.items()) if path.endswith(".npz") else {"array": loaded}
        content: Any = {
            name: torch.from_numpy(numpy.ascontiguousarray(each)) for name, each in arrays.items()
        }
    else:
        content = torch.load(path, map_location="cpu", weights_only=True)
    values = dict(_named("", content, 0))
    found = {name or "tensor": each for name, each in values.items() if isinstance(each, torch.Tensor)}
    if not found:
        raise ConversionError("it holds no tensors")
    if len(found) > _MOST_TENSORS:
        raise ConversionError(f"it holds more than {_MOST_TENSORS} tensors")
    return found, [name for name, each in values.items() if not isinstance(each, torch.Tensor)]


def _named(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value for each leaf of nested dictionaries and lists."""
    if isinstance(value, dict | list | tuple) and depth < _MAX_DEPTH:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _named(f"{name}.{key}" if name else str(key), each, depth + 1)
    else:
        yield name, value


def write_tensors(tensors: dict[str, Any], left_out: list[str], output: int) -> None:
    """Write tensors to a file descriptor, the largest data types first, as readers expect for alignment."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    offset = 0
    for name in names:
        each = tensors[name]
        kind = str(each.dtype).removeprefix("torch.")
        if kind not in _DTYPES or each.is_sparse or each.is_quantized:
            raise ConversionError(f"the tensor {name[:80]} has the type {kind}, which safetensors lacks")
        size = each.numel() * each.element_size()
        header[name] = {
            "dtype": _DTYPES[kind], "shape": list(each.shape), "data_offsets": [offset, offset + size],
        }  # fmt: skip
        offset += size
    header["__metadata__"] = {
        "format": "pt",
        "not_tensors": str(len(left_out)),
        "examples": ", ".join(left_out[:_MAX_LEFT_OUT])[:1000],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    _write(output, struct.pack("<Q", len(text)) + text)
    for name in names:
        _write_tensor(output, tensors[name])


def _write_tensor(output: int, each: Any) -> None:
    import torch  # noqa: PLC0415

    flat = each.detach().contiguous().reshape(-1).view(torch.uint8) if each.numel() else None
    if flat is not None:
        _write(output, memoryview(flat.numpy()))


def _write(output: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(output, view[:_CHUNK_BYTES]) :]


def main() -> int:
    """Convert the file of the command line; print an error as one line on stderr."""
    output = os.dup(1)
    # Redirect standard output, so that nothing that a library prints gets into the tensors.
    os.dup2(2, 1)
    try:
        write_tensors(*read_tensors(sys.argv[1]), output)
    except ImportError as error:
        sys.stderr.write(f"this Python has no {error.name}\n")
        return 3
    except BaseException as error:  # noqa: BLE001 - a checkpoint may raise anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        sys.stderr.write(f"{lines[0][:300]}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
