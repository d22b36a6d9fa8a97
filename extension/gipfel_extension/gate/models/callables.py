"""Harm that a name in a pickle can do when the pickle is loaded: none, run code of a library, or any code.

The names that do nothing are an allow list; every other name is code. Among those, some have no place in a
model: `is_dangerous` names modules that start programs, open files or connections, or run code given as text.
It decides only between ``needs code`` and ``malicious``, so a gap in it never makes a file ``plain``.
"""

import _compat_pickle
import re

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
#: Names that build plain values. Source of torch's: ``_get_allowed_globals`` of torch 2.13's
#: ``torch._weights_only_unpickler``.
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
#: The same, where programs often have their own packages of this name: only the module itself.
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
#: Modules below a dangerous one that only hold values.
_HARMLESS_MODULES = frozenset(("urllib.parse", "http.cookies", "concurrent.futures._base"))


def modern(module: str, name: str) -> tuple[str, str]:
    """Return the Python 3 name of something, as an unpickler maps the names of Python 2."""
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


def is_plain(module: str, name: str) -> bool:
    """Return whether calling this with any arguments only builds a value."""
    module, name = modern(module, name)
    return f"{module} {name}" in PLAIN


def is_dangerous(module: str, name: str) -> bool:
    """Return whether no model has a reason to name this."""
    return any(_dangerous(*each) for each in ((module, name), modern(module, name)))


def _dangerous(module: str, name: str) -> bool:
    first = name.partition(".")[0]
    if _SPECIAL.search(name):
        # A path through special attributes reaches everything: a.__globals__, dict.__class__.
        return True
    if module in ("builtins", "__builtin__"):
        return first in _DANGEROUS_BUILTINS
    if f"{module} {name}" in ("_io BytesIO", "io BytesIO", "_io StringIO", "io StringIO"):
        return False
    named = module in _DANGEROUS_ALONE or f"{module} {name}" in _DANGEROUS_NAMES
    if named or module.startswith(_DANGEROUS_PREFIXES):
        return True
    # numpy.os.system and torch.os: what a module has imported itself.
    reached = {*module.split(".")[1:], *name.split(".")[:-1]} & _REACHED
    root = module.partition(".")[0]
    return bool(reached) or (
        root in _DANGEROUS_MODULES and module not in _HARMLESS_MODULES and not _HARMLESS.match(name)
    )
