"""Checkpoints of other programs: ``torch.save`` and safetensors files, and the Trainer's directories.

Nothing is unpickled: a ``torch.save`` file is a zip archive with a CRC-32 of each tensor, a safetensors file
begins with the names, shapes and offsets of its tensors, and a directory of Hugging Face's Trainer contains
files of either kind, and JSON files. Standard library only.
"""

import hashlib
import json
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..telemetry.files import open_regular, read_json, read_tail

#: Directories of Hugging Face's Trainer.
TRAINER = re.compile(r"checkpoint-([0-9]{1,15})")
#: The Trainer's state, written after the model and the optimizer: without it a directory is not complete.
_TRAINER_STATE = "trainer_state.json"
_INDEX = "model.safetensors.index.json"
_MODELS = ("model.safetensors", _INDEX, "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
TORCH_SUFFIXES = frozenset((".pt", ".pth", ".bin", ".ckpt"))
_MAX_HEADER_BYTES = 100 << 20
_MAX_STATE_BYTES = 64 << 20
_MAX_MEMBERS = 1_000_000
_MAX_FILES = 10_000
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22
_CHUNK_BYTES = 4 << 20
#: Size in bytes of one value of each type, as in the description of the safetensors format.
_DTYPES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2,
           "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8,
           "U64": 8, "F64": 8, "C64": 8}  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """Result of a check.

    Parameters
    ----------
    problem
        A clause such as ``is cut off``; empty if nothing is wrong.
    hashed
        Whether this check compared a checksum of every tensor; never for safetensors, which has none.
    model
        Hash of the names, types and shapes of all tensors; empty if they were not read.
    """

    problem: str = ""
    hashed: bool = False
    model: str = ""


def check_file(path: Path, *, verify: bool) -> Findings:
    """Check a ``torch.save`` or safetensors file against its own header or directory.

    ``verify`` also compares the checksums of a ``torch.save`` file, for which it reads every byte.
    """
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        return _torch_file(path, verify=verify)
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError,
        zipfile.BadZipFile, NotImplementedError, EOFError,
    ):  # fmt: skip
        return Findings("is not a valid file")


def trainer_step(path: Path) -> int:
    """Return the step of a directory named exactly ``checkpoint-N``; -1 for any other name."""
    found = TRAINER.fullmatch(path.name)
    return int(found[1]) if found else -1


def check_trainer(path: Path, *, verify: bool) -> tuple[Findings, bool]:
    """Check a Trainer directory; return the findings, and whether the Trainer had finished writing it."""
    if not (path / _TRAINER_STATE).exists():
        return Findings(f"has no {_TRAINER_STATE}, which is written late"), False
    problem = _state_problem(path) or _missing_shards(path)
    if problem:
        return Findings(problem), True
    digests, hashed = [], True
    for each in sorted(path.iterdir())[:_MAX_FILES]:
        if each.suffix in TORCH_SUFFIXES or each.suffix == ".safetensors":
            found = check_file(each, verify=verify)
            if found.problem:
                return Findings(f"{each.name} {found.problem}"), True
            hashed = hashed and found.hashed
            if found.model:
                digests.append(f"{each.name} {found.model}")
    model = hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else ""
    return Findings(hashed=hashed, model=model), True


def _state_problem(path: Path) -> str:
    try:
        step = read_json(path / _TRAINER_STATE, _MAX_STATE_BYTES)["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"has a {_TRAINER_STATE} that is not valid"
    if step != trainer_step(path):
        return f"is of step {step} according to its {_TRAINER_STATE}"
    return "" if any((path / name).exists() for name in _MODELS) else "has no model"


def _missing_shards(path: Path) -> str:
    """Return what is wrong with the index or its shards, as a clause; empty without problems or index."""
    if not (path / _INDEX).exists():
        return ""
    try:
        places = read_json(path / _INDEX, _MAX_STATE_BYTES)["weight_map"]
        shards: dict[str, set[str]] = {}
        for tensor, name in places.items():
            shards.setdefault(name, set()).add(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"has an {_INDEX} that is not valid"
    for name, tensors in shards.items():
        if Path(name).name != name:
            return f"has an {_INDEX} that names files elsewhere"
        try:
            absent = tensors - _header(path / name)[0].keys()
        except (OSError, ValueError, struct.error, RecursionError):
            return f"{name} is missing or not valid"
        if absent:
            return f"{name} lacks {min(absent)[:100]}"
    return ""


def _torch_file(path: Path, *, verify: bool) -> Findings:
    size = path.lstat().st_size
    tail = read_tail(path, 1 << 16)
    start = tail.rfind(_ZIP_END)
    if start < 0 or len(tail) - start < _ZIP_END_BYTES:
        return Findings("is cut off, or is not of torch.save")
    # Size and offset of the archive's directory; 0xFFFFFFFF stands for a larger number elsewhere (Zip64).
    length, offset = struct.unpack_from("<II", tail, start + 12)
    if 0xFFFFFFFF not in {length, offset} and offset + length > size:
        return Findings("is cut off")
    if not verify:
        return Findings()
    hashed = True
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        for member in _members(archive):
            # torch.save does not compress. If its checksums are switched off, they are 0.
            if member.compress_type != zipfile.ZIP_STORED:
                return Findings("is not of torch.save")
            try:
                with archive.open(member) as content:
                    while content.read(_CHUNK_BYTES):
                        pass
            except zipfile.BadZipFile:
                if member.CRC:
                    return Findings(f"{_plain(member.filename)} does not have the content that was written")
                hashed = False
    return Findings(hashed=hashed)


def _members(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    members = archive.infolist()
    if len(members) > _MAX_MEMBERS:
        raise ValueError("too many members")
    return iter(members)


def _safetensors(path: Path) -> Findings:
    """Check that the offsets and sizes of the tensors in a safetensors file cover it exactly."""
    header, begin, size = _header(path)
    places = []
    for tensor in header.values():
        first, last = tensor["data_offsets"]
        count = _DTYPES.get(tensor["dtype"], 0)
        for length in tensor["shape"]:
            count *= length
        if count and count != last - first:
            return Findings("has a tensor whose size is not that of its shape")
        places.append((first, last))
    end = 0
    for first, last in sorted(places):
        if first != end or last < first:
            return Findings("has tensors that overlap or leave holes")
        end = last
    if begin + end != size:
        return Findings("is cut off" if begin + end > size else "has bytes after its tensors")
    lines = (f"{name} {each['dtype']} {each['shape']}" for name, each in sorted(header.items()))
    return Findings(model=hashlib.sha256("\n".join(lines).encode()).hexdigest())


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return the header entries of a safetensors file by tensor, the offset of the data, and the size."""
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(_MAX_HEADER_BYTES, size):
            raise ValueError("is cut off, or is not of safetensors")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length, size


def _plain(name: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in name)[:100]
