"""Values in a pickle: names and the harm that each can do, calls, and the size of a joblib array.

When a pickle is loaded, a name that it looks up may build a plain value, run code of a library, or run any
code. An allow list has the names that build plain values; every other name counts as code. `is_dangerous` is
true for names that no model needs: they start programs, open files or connections, or run code given as text.
It decides only between ``needs code`` and ``malicious``, so a gap in it never makes a file ``plain``.
"""

import _compat_pickle
import re
from typing import Any

from .streams import NotUnderstoodError

_BUILTINS = "set frozenset bytearray bytes complex range slice int float str list dict tuple bool object"
_DTYPES = (
    "float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex32 "
    "complex64 complex128 half float double long int short float8_e4m3fn float8_e5m2 quint8 qint8 qint32 "
)
_STORAGES = (
    "FloatStorage DoubleStorage HalfStorage BFloat16Storage LongStorage IntStorage ShortStorage "
    "CharStorage ByteStorage BoolStorage ComplexFloatStorage ComplexDoubleStorage QUInt8Storage "
    "QInt8Storage QInt32Storage "
)
#: Names that build plain values, by module. Source for torch's names: ``_get_allowed_globals`` in
#: ``torch._weights_only_unpickler`` of torch 2.13.
_PLAIN: dict[str, str] = {
    "builtins": _BUILTINS,
    "collections": "OrderedDict Counter defaultdict deque",
    "copyreg": "_reconstructor",
    "_codecs": "encode",
    "datetime": "date time datetime timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "uuid": "UUID",
    "numpy": f"ndarray dtype {' '.join(f'{each}_' for each in ('bool', 'str', 'bytes'))} "
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
    "joblib.numpy_pickle": "NumpyArrayWrapper",
    "torch": f"Size Tensor device {_DTYPES} {_STORAGES}",
    "torch.cuda": _STORAGES,
    "torch.nn.parameter": "Parameter Buffer",
    "torch.serialization": "_get_layout",
    "torch.storage": "TypedStorage UntypedStorage _load_from_bytes",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
    "_rebuild_parameter_with_state _rebuild_sparse_tensor _rebuild_qtensor _rebuild_meta_tensor_no_storage "
    "_rebuild_device_tensor_from_numpy _rebuild_device_tensor_from_cpu_tensor _rebuild_nested_tensor",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch.distributed.checkpoint.metadata": "Metadata TensorStorageMetadata BytesStorageMetadata "
    "ChunkStorageMetadata TensorProperties MetadataIndex StorageMeta _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo _StoragePrefix",
}
PLAIN = frozenset(f"{module} {name}" for module, names in _PLAIN.items() for name in names.split())

#: Modules whose functions start programs, reach files or the network, or run code given as text or bytes.
_ROOTS = (
    "os posix nt subprocess sys socket pty runpy importlib ctypes _ctypes cffi commands shutil webbrowser "
    "codeop pip ensurepip pydoc timeit cProfile pdb bdb doctest idlelib lib2to3 asyncio multiprocessing "
    "concurrent marshal pkgutil zipimport imp signal http urllib ftplib smtplib telnetlib poplib imaplib "
    "nntplib xmlrpc socketserver ssl requests aiohttp httpx paramiko pickle _pickle cPickle dill shelve "
    "dbm tempfile fileinput linecache venv unittest distutils setuptools sysconfig platform sqlite3 "
    "_posixsubprocess _io io zipapp atexit faulthandler _winapi winreg msvcrt crypt getpass mailcap "
    "pexpect plumbum IPython ipykernel jupyter_client "
)
_DANGEROUS_MODULES = frozenset(_ROOTS.split())
#: Dangerous modules whose names other packages often use as well: here only the module itself counts.
_ALONE = "code profile trace site glob invoke sh fabric test "
_DANGEROUS_ALONE = frozenset(_ALONE.split())
_RUNNERS = (
    "eval exec execfile compile __import__ getattr setattr delattr open file input raw_input breakpoint "
    "globals locals vars apply reload map filter help exit quit memoryview super type __build_class__ "
)
_DANGEROUS_BUILTINS = frozenset(_RUNNERS.split())
_DANGEROUS_NAMES = frozenset(
    (
        "types FunctionType",
        "types CodeType",
        "types LambdaType",
        "operator attrgetter",
        "operator methodcaller",
        "_operator attrgetter",
        "_operator methodcaller",
        "joblib load",
        "joblib.numpy_pickle load",
        "pandas read_pickle",
        "pandas.io.pickle read_pickle",
        "numpy load",
        "numpy fromfile",
        "numpy memmap",
        "numpy.testing._private.utils runstring",
        "torch load",
        "torch.hub load",
        "torch.serialization load",
        "torch.jit load",
        "torch.ops load_library",
        "torch.utils.cpp_extension load_inline",
        "torch.utils.cpp_extension load",
        "torch._dynamo.guards GuardBuilder.get",
        "torch.fx.experimental.symbolic_shapes ShapeEnv.evaluate_guards_expression",
        "torch.utils.data.datapipes.utils.decoder basichandlers",
        "logging.config fileConfig",
        "logging.config dictConfig",
        "logging FileHandler",
        "codecs open",
        "pathlib Path.write_text",
        "functools reduce",
    )
)
_DANGEROUS_PREFIXES = (
    "numpy.f2py",
    "numpy.distutils",
    "torch.utils.bottleneck",
    "torch.utils._config_module",
)
_REACHED = frozenset(("os", "sys", "subprocess", "builtins", "__builtins__"))
_SPECIAL = re.compile(r"(?:^|\.)__\w+__(?:\.|$)")
_HARMLESS = re.compile(r"[A-Za-z_]*(Error|Exception|Warning)$")
#: Submodules of dangerous modules that only hold values.
_HARMLESS_MODULES = frozenset(("urllib.parse", "http.cookies", "concurrent.futures._base"))


def modern(module: str, name: str) -> tuple[str, str]:
    """Return the Python 3 module and name for a Python 2 name, as an unpickler maps them."""
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


def is_plain(module: str, name: str) -> bool:
    """Return whether calling this with any arguments only builds a value."""
    module, name = modern(module, name)
    return f"{module} {name}" in PLAIN


def is_dangerous(module: str, name: str) -> bool:
    """Return whether no model has a reason to use this name."""
    return any(_dangerous(*each) for each in ((module, name), modern(module, name)))


def _dangerous(module: str, name: str) -> bool:
    first = name.partition(".")[0]
    if _SPECIAL.search(name):
        # A path through special attributes, such as a.__globals__ or dict.__class__, reaches everything.
        return True
    if module in ("builtins", "__builtin__"):
        return first in _DANGEROUS_BUILTINS
    if f"{module} {name}" in ("_io BytesIO", "io BytesIO", "_io StringIO", "io StringIO"):
        return False
    named = module in _DANGEROUS_ALONE or f"{module} {name}" in _DANGEROUS_NAMES
    if named or module.startswith(_DANGEROUS_PREFIXES):
        return True
    # Dangerous modules are also reachable through modules that import them, such as numpy.os.system.
    reached = {*module.split(".")[1:], *name.split(".")[:-1]} & _REACHED
    root = module.partition(".")[0]
    return bool(reached) or (
        root in _DANGEROUS_MODULES and module not in _HARMLESS_MODULES and not _HARMLESS.match(name)
    )


MAX_TEXT = 4096
PADDING = "numpy_array_alignment_bytes"
ARRAY = ("joblib.numpy_pickle", "NumpyArrayWrapper")
LOAD = ("torch.storage", "_load_from_bytes")
FROM_TYPE = ("torch._tensor", "_rebuild_from_type_v2")
GETATTR = ("builtins", "getattr")
#: Names whose calls by the pickle itself the walk follows. As an argument, other code may call them unseen.
FOLLOWED = frozenset((ARRAY, LOAD, FROM_TYPE, GETATTR))
_DTYPE = re.compile(r"[biufcmMSU]\d{1,9}")


class _Unknown:
    """A value that the walk does not follow."""


UNKNOWN = _Unknown()


class Named:
    """A name that the pickle looked up."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self.full = modern(module, name)


class Called:
    """The result of a call, with the state that the pickle set on it afterwards (BUILD)."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.function, self.arguments = function, arguments
        self.state: dict[Any, Any] = {}


def array_size(state: dict[Any, Any]) -> int | None:
    """Return the size of an array in bytes, from joblib's wrapper; None if the array is itself pickled.

    Raises
    ------
    NotUnderstoodError
        An attribute is not a plain value, so joblib may read a different number of bytes.
    """
    shape, dtype, padding = state.get("shape"), state.get("dtype"), state.get(PADDING)
    if not {"state", UNKNOWN}.isdisjoint(state) or not isinstance(padding, int | None):
        raise NotUnderstoodError("the attributes of an array in it are not known")
    kind = dtype.arguments[0] if isinstance(dtype, Called) and _is_dtype(dtype) else None
    if kind in ("O8", "O", "|O"):
        return None
    if not isinstance(kind, str) or not _DTYPE.fullmatch(kind) or not isinstance(shape, tuple):
        raise NotUnderstoodError("the type of an array in it is not known")
    size = int(kind[1:]) * (4 if kind[0] == "U" else 1)
    if not isinstance(dtype, Called) or not _keeps_size(dtype, size):
        raise NotUnderstoodError("the type of an array in it is not known")
    for length in shape:
        if not isinstance(length, int) or not 0 <= length < 1 << 48 or size > 1 << 60:
            raise NotUnderstoodError("the shape of an array in it is not valid")
        size *= length
    return size


def _is_dtype(value: Called) -> bool:
    function = value.function
    named = isinstance(function, Named) and function.full == ("numpy", "dtype")
    return named and isinstance(value.arguments, tuple) and bool(value.arguments)


def _keeps_size(dtype: Called, size: int) -> bool:
    """Return whether a dtype's state keeps the size of its elements. Source: ``dtype.__setstate__``."""
    if not dtype.state:
        return True
    state = dtype.state.get("state")
    if len(dtype.state) > 1 or not isinstance(state, tuple) or len(state) < 6:
        return False
    # The state is version, byte order, subarray, names, fields, size, alignment, flags, metadata.
    return state[2:5] == (None, None, None) and state[5] in (-1, size)


def text_of(name: str, line: bytes) -> Any:
    """Return the text argument of a protocol 0 opcode, given its line."""
    if len(line) > MAX_TEXT:
        return UNKNOWN
    if name == "UNICODE":
        return line.decode("raw-unicode-escape")
    quoted = line.strip()
    if len(quoted) < 2 or quoted[:1] != quoted[-1:] or quoted[:1] not in (b"'", b'"'):
        raise ValueError
    return quoted[1:-1].decode("unicode-escape")


def integer_of(line: bytes) -> Any:
    """Return the integer argument of a protocol 0 opcode, given its line."""
    if line in (b"00", b"01"):
        return line == b"01"
    text = line.rstrip(b"L")
    return int(text, 0) if len(text) < 40 else UNKNOWN
