"""Builders of model files: opcodes of pickles, archives and the formats of frameworks, good or damaged."""

import io
import json
import pickle
import struct
import tarfile
import zipfile

import numpy as np

CANARY = "touch /tmp/gipfel-gate-canary"


def op_str(text: str) -> bytes:
    """The opcode that pushes a short text."""
    raw = text.encode()
    return b"\x8c" + bytes([len(raw)]) + raw


def call(module: str, name: str, *arguments: bytes) -> bytes:
    """A pickle of protocol 4 that calls something."""
    return b"\x80\x04" + op_str(module) + op_str(name) + b"\x93(" + b"".join(arguments) + b"tR."


def old_call(module: str, name: str, argument: str = CANARY) -> bytes:
    """The same in protocol 0."""
    return f"c{module}\n{name}\n(S'{argument}'\ntR.".encode()


SYSTEM = call("posix", "system", op_str(CANARY))


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def tensors_pickle() -> bytes:
    """``data.pkl`` of a torch file with one tensor, as torch writes it: storages by persistent id."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x02K\x02\x86K\x02K\x01\x86"
    tensor += b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}q\x00X\x06\x00\x00\x00weightq\x01" + tensor + b"s."


def torch_zip(data: bytes) -> bytes:
    return zipped({"m/data.pkl": data, "m/data/0": b"\x80\x02" + bytes(14), "m/version": b"3\n"})


def torch_legacy(data: bytes) -> bytes:
    first = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    info = pickle.dumps({"protocol_version": 1001, "little_endian": True}, 2)
    return first + info + data + pickle.dumps(["0"], 2) + bytes(24)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def npy_of(content: bytes) -> bytes:
    """An object array whose pickle is `content`."""
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def joblib_file(after: bytes = b"") -> bytes:
    """A dictionary with one array of eight floats as joblib writes it; `after` replaces its end."""
    wrapper = b"cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}("
    state = op_str("subclass") + b"cnumpy\nndarray\n" + op_str("shape") + b"K\x08\x85" + op_str("order")
    state += op_str("C") + op_str("dtype") + b"cnumpy\ndtype\n" + op_str("f8") + b"\x89\x88\x87R"
    state += b"(K\x03" + op_str("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state += op_str("allow_mmap") + b"\x88" + op_str("numpy_array_alignment_bytes") + b"K\x10"
    array = b"\x03\xff\xff\xff" + np.arange(8, dtype="<f8").tobytes()
    return b"\x80\x04}" + op_str("w") + wrapper + state + b"ub" + array + b"s" + (after or b".")


def gguf(template: str) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    tokens = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    scores = text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + bytes(8)
    keys = tokens + scores + text("tokenizer.chat_template") + struct.pack("<I", 8) + text(template)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + keys


def field(number: int, content: bytes) -> bytes:
    """A field of protobuf that holds bytes."""
    length, size = len(content), b""
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return varint(number << 3 | 2) + size + bytes([length]) + content


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def onnx(location: str = "weights.bin", domain: str = "") -> bytes:
    external = field(13, field(1, b"location") + field(2, location.encode()))
    tensor = field(5, b"\x08\x02" + field(8, b"w") + external)
    node = field(1, field(4, b"Add") + field(7, domain.encode()))
    return b"\x08\x08" + field(7, node + tensor) + field(8, field(1, domain.encode()) + b"\x10\x11")


def safetensors(extra: bytes = b"") -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8) + extra


def keras(layer: dict) -> bytes:
    config = {"class_name": "Sequential", "module": "keras", "config": {"layers": [layer]}}
    return zipped({"config.json": json.dumps(config).encode(), "metadata.json": b"{}"})


def notebook(source: str, html: str = "") -> bytes:
    outputs = [{"output_type": "display_data", "data": {"text/html": html}, "metadata": {}}] if html else []
    cell = {"cell_type": "code", "source": source, "outputs": outputs, "metadata": {}, "execution_count": 1}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def broken_crc(content: bytes) -> bytes:
    """CVE-2025-10156: another checksum in headers and directory."""
    raw = bytearray(content)
    for mark, at in ((b"PK\x03\x04", 14), (b"PK\x01\x02", 16)):
        start = raw.find(mark)
        while start >= 0:
            raw[start + at] ^= 0xFF
            start = raw.find(mark, start + 4)
    return bytes(raw)


def encrypted_flag(content: bytes) -> bytes:
    """CVE-2025-1945: a flag that says the member is encrypted, which torch ignores."""
    raw = bytearray(content)
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = raw.find(mark)
        while start >= 0:
            raw[start + at] |= 1
            start = raw.find(mark, start + 4)
    return bytes(raw)
