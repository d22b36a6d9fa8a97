"""Judge a file, whose format is recognized by its content instead of its name; judge archives by members."""

import io
import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, cast

from ..model import Finding, Judgement
from .array_files import judge_object_array, npy_holds_objects, scan_gguf, scan_onnx, scan_safetensors
from .configs import scan_hdf5, scan_json, scan_template
from .pickles import scan_pickles
from .streams import (
    Budget,
    NotUnderstoodError,
    Window,
    before_archive,
    decompress,
    has_zip_directory,
    members,
    seekable,
)

#: Name endings of model files: their content must be recognized. Files with other names may be any data.
MODEL_ENDINGS = (
    ".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".dill", ".npy", ".npz", ".keras",
    ".h5", ".hdf5",
    ".onnx", ".gguf", ".safetensors", ".nemo", ".mar", ".pt2", ".p", ".model", ".metadata", ".distcp",
    ".7z", ".pb",
)  # fmt: skip
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x5d\x00\x00": "xz"}
_NOT_READ = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "LZ4",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"ZF0x": "an old version of joblib",
    b"Rar!": "RAR",
}
#: The known harmless line of ``distutils-precedence.pth``, which setuptools installs.
_SETUPTOOLS = (
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
    "enabled and __import__('_distutils_hack');"
)
_HEAD = 512
_SHORT = 4 << 20
_FORWARD: Final = "r|"
_UNKNOWN = Judgement(recognized=False)


def scan_file(file: BinaryIO, name: str, budget: Budget) -> Judgement:
    """Judge a file; whatever its content is, nothing is raised."""
    return scan_member(file, name, budget, 0)


def scan_member(file: BinaryIO, name: str, budget: Budget, depth: int) -> Judgement:
    """Judge a file or an archive member at a nesting depth; broken data is `not understood`."""
    return _guarded(lambda: _scan(file, name, budget, depth))


def _guarded(scan: Callable[[], Judgement]) -> Judgement:
    try:
        return scan()
    except NotUnderstoodError as error:
        return Judgement.unclear(str(error))
    except (RecursionError, MemoryError):
        return Judgement.unclear("it is nested too deeply or too large")
    except (tarfile.TarError, OSError, ValueError, EOFError, OverflowError) as error:
        return Judgement.unclear(f"it is broken ({type(error).__name__})")


def _scan(file: BinaryIO, name: str, budget: Budget, depth: int) -> Judgement:
    if depth > budget.depth:
        raise NotUnderstoodError("its archives are nested too deeply")
    if not file.seekable():
        file = _short(file)
    head = _peek(file)
    by_start = _guarded(lambda: _by_start(head, file, name, budget, depth))
    if others := [_guarded(each) for each in _other_readings(head, by_start, file, name, budget, depth)]:
        by_start = Judgement.union([by_start, *others])
    if not by_start.recognized and name.lower().endswith(MODEL_ENDINGS) and head:
        raise NotUnderstoodError("its format is not known")
    return by_start


def _other_readings(  # noqa: PLR0917 - what scanning a file needs, and its verdict so far
    head: bytes, by_start: Judgement, file: BinaryIO, name: str, budget: Budget, depth: int
) -> Iterator[Callable[[], Judgement]]:
    """Yield functions that judge the file as a further format: its bytes may be valid in several formats."""
    if not file.seekable():
        return
    # Data that was not recognized has already been tried as a pickle.
    if by_start.recognized and not head.startswith(b"\x80"):
        file.seek(0)
        yield lambda: scan_pickles(file, budget, _scanner(budget, depth), certain=False) or Judgement()
    if head[257:262] == b"ustar" and head.startswith(tuple(_FORMATS)):
        file.seek(0)
        yield lambda: _scan_tar(file, budget, depth)
    # A second format at the end of the file.
    if not head.startswith(b"PK") and _ends_as_zip(file):
        yield lambda: _scan_zip(file, name, budget, depth)


def _by_start(  # noqa: PLR0911 - one answer for each kind of beginning
    head: bytes, file: BinaryIO, name: str, budget: Budget, depth: int
) -> Judgement:
    if not head:
        return _UNKNOWN
    for start, kind in _NOT_READ.items():
        if head.startswith(start):
            raise NotUnderstoodError(f"it is compressed with {kind}, which Gipfel does not unpack")
    for start, kind in _COMPRESSED.items():
        if head.startswith(start):
            return scan_member(
                cast("BinaryIO", decompress(file, kind, budget)), _inner(name), budget, depth + 1
            )
    if (
        head[0] == 0x78
        and len(head) > 1
        and int.from_bytes(head[:2], "big") % 31 == 0
        and head[1] & 0x20 == 0
    ):
        return _zlib(file, name, budget, depth)
    for start, scan in _FORMATS.items():
        if head.startswith(start):
            return scan(file, name, budget, depth)
    if head[257:262] == b"ustar":
        return _scan_tar(file, budget, depth)
    if _is_safetensors(head, name):
        if (known := forward_size(file)) is not None:
            return scan_safetensors(file, known)
        source = seekable(file, budget)
        size = source.seek(0, io.SEEK_END)
        source.seek(0)
        return scan_safetensors(source, size)
    return _by_text(head, file, name, budget, depth)


def _by_text(head: bytes, file: BinaryIO, name: str, budget: Budget, depth: int) -> Judgement:
    """Judge formats without a magic number: JSON, ONNX, path ``.pth`` files, pickles of protocols 0 and 1."""
    lower = name.lower()
    if lower.endswith(".pth") and (found := _path_lines(head)):
        return found
    if lower.endswith(".onnx"):
        source = seekable(file, budget)
        size = source.seek(0, io.SEEK_END)
        return scan_onnx(source, size, budget)
    if lower.endswith((".jinja", ".jinja2")):
        return scan_template(file, name)
    stripped = head.lstrip()
    if stripped[:1] in (b"{", b"[") and lower.endswith((".json", ".ipynb")):
        return scan_json(file, budget.package_index)
    certain = lower.endswith((".pkl", ".pickle", ".joblib", ".dill", ".p"))
    found_pickle = scan_pickles(file, budget, _scanner(budget, depth), certain=certain)
    if found_pickle is not None:
        return found_pickle
    # Directories for Python's search path.
    is_path_file = lower.endswith(".pth") and all(
        line.isprintable() for line in head.decode(errors="replace").splitlines()
    )
    return Judgement() if is_path_file else _UNKNOWN


def _scanner(budget: Budget, depth: int) -> Callable[[bytes], Judgement]:
    def scan_bytes(content: bytes) -> Judgement:
        stream = cast("BinaryIO", io.BufferedReader(io.BytesIO(content)))
        # With the name of a model file, content of an unknown format is `not understood` instead of plain.
        return scan_member(stream, "tensors.pt", budget, depth + 1).inside("bytes in it")

    return scan_bytes


def _scan_pickle(file: BinaryIO, name: str, budget: Budget, depth: int) -> Judgement:
    # In an archive, the bytes of a tensor may happen to begin like a pickle.
    certain = depth == 0 or name.lower().endswith(MODEL_ENDINGS)
    return scan_pickles(file, budget, _scanner(budget, depth), certain=certain) or _UNKNOWN


def _scan_npy(file: BinaryIO, _name: str, budget: Budget, depth: int) -> Judgement:
    if not npy_holds_objects(file):
        return Judgement()
    return judge_object_array(scan_pickles(file, budget, _scanner(budget, depth), certain=True) or _UNKNOWN)


def _scan_zip(file: BinaryIO, _name: str, budget: Budget, depth: int) -> Judgement:
    source = seekable(file, budget)
    total = Judgement()
    while True:
        # A member that can't be read must not hide what was found in others.
        try:
            for member, stream in members(source, budget):
                found = (
                    Judgement.unclear(stream)
                    if isinstance(stream, str)
                    else scan_member(cast("BinaryIO", stream), member.name, budget, depth + 1)
                )
                if found.verdict != "plain" or found.findings:
                    total = Judgement.union([total, found.inside(member.name)])
        except NotUnderstoodError as error:
            return Judgement.union([total, Judgement.unclear(str(error))])
        before = before_archive(source)
        if not before:
            return total
        # A torch.distributed checkpoint is several archives in a row.
        budget.take_member()
        source = cast("BinaryIO", io.BufferedReader(Window(source, 0, before)))
        if not has_zip_directory(source):
            found = scan_member(source, "before the archive", budget, depth + 1)
            return Judgement.union([total, found.inside("before the archive")])


def _scan_tar(file: BinaryIO, budget: Budget, depth: int) -> Judgement:
    found: list[Judgement] = []
    broken = _guarded(lambda: _scan_members(file, budget, depth, found))
    return Judgement.union([*found, broken])


class _UntilItsEnd:
    """A file for tarfile that raises at its end: tarfile would keep reading a member with a forged size."""

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        self._file, self._budget, self._reads_left = file, budget, 4

    def read(self, count: int) -> bytes:
        """Return the next bytes; raise after several reads at the end of the file."""
        self._budget.check_time()
        content = self._file.read(count)
        self._reads_left -= not content
        if not self._reads_left:
            raise NotUnderstoodError("it ends before the content of the files that it lists")
        return content


def _scan_members(file: BinaryIO, budget: Budget, depth: int, total: list[Judgement]) -> Judgement:
    """Append the judgement on each member of a tar file to `total`, so that they survive a broken end."""
    source = cast("BinaryIO", _UntilItsEnd(file, budget))
    with tarfile.open(fileobj=source, mode=_FORWARD) as archive:
        for member in archive:
            budget.take_member()
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None:
                continue
            # In this mode, tarfile's streams can't seek back, although `seekable` returns True.
            forward = cast("BinaryIO", io.BufferedReader(Forward(cast("BinaryIO", stream))))
            found = scan_member(forward, member.name, budget, depth + 1)
            if found.verdict != "plain" or found.findings:
                total[:] = [Judgement.union([*total, found.inside(member.name)])]
    return Judgement()


def _short(file: BinaryIO) -> BinaryIO:
    """Return a stream as a seekable file in memory if it is short, else as a forward-only file."""
    start = file.read(_SHORT)
    if len(start) < _SHORT:
        return cast("BinaryIO", io.BufferedReader(io.BytesIO(start)))
    return cast("BinaryIO", io.BufferedReader(Forward(file, start, forward_size(file))))


class Forward(io.RawIOBase):
    """A forward-only file that begins with bytes that were already read (`start`).

    Parameters
    ----------
    size
        Size of the whole file in bytes; None if unknown.
    """

    def __init__(self, file: BinaryIO, start: bytes = b"", size: int | None = None) -> None:
        self._file, self._start, self.size = file, start, size

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes into a buffer."""
        count = len(buffer)
        content = self._start[:count] or self._file.read(count)
        self._start = self._start[count:]
        buffer[: len(content)] = content
        return len(content)


def forward_size(file: BinaryIO) -> int | None:
    """Return the size of a forward-only file in bytes; None if unknown."""
    raw = getattr(file, "raw", None)
    return raw.size if isinstance(raw, Forward) else None


def _zlib(file: BinaryIO, name: str, budget: Budget, depth: int) -> Judgement:
    """Judge a file that may be zlib data, or something else: its two-byte header is weak evidence."""
    found = scan_member(cast("BinaryIO", decompress(file, "zlib", budget)), _inner(name), budget, depth + 1)
    if found.verdict == "not understood" and not name.lower().endswith(MODEL_ENDINGS):
        return _UNKNOWN
    return found


def _path_lines(head: bytes) -> Judgement | None:
    """Judge a ``.pth`` file of site-packages: Python runs each line that begins with ``import``."""
    lines = head.decode(errors="replace").splitlines()
    if not all(line.isprintable() for line in lines[:5]):
        return None
    if not any(line.startswith(("import ", "import\t")) and line.strip() != _SETUPTOOLS for line in lines):
        return None
    finding = Finding(
        rule="path-file-code",
        severity="high",
        message="Python runs a line of it at every start.",
        fix="Remove the package that brought it unless you know why it does that.",
    )
    return Judgement.of([("needs code", finding)])


def _is_safetensors(head: bytes, name: str) -> bool:
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and (length < 1 << 30 or name.lower().endswith(".safetensors"))


def _ends_as_zip(file: BinaryIO) -> bool:
    try:
        return has_zip_directory(file)
    except NotUnderstoodError:
        return False


def _inner(name: str) -> str:
    root, dot, ending = name.rpartition(".")
    return root if dot and ending.lower() in ("gz", "bz2", "xz", "lzma", "z", "tgz") else name


def _peek(file: BinaryIO) -> bytes:
    if file.seekable():
        start = file.read(_HEAD)
        file.seek(0)
        return start
    return bytes(cast("io.BufferedReader", file).peek(_HEAD)[:_HEAD])


_FORMATS: dict[bytes, Callable[[BinaryIO, str, Budget, int], Judgement]] = {
    b"PK\x03\x04": _scan_zip,
    b"PK\x05\x06": _scan_zip,
    b"\x93NUMPY": _scan_npy,
    b"GGUF": lambda file, _name, budget, _depth: scan_gguf(file, budget),
    b"\x89HDF\r\n\x1a\n": lambda file, _name, _budget, _depth: scan_hdf5(file),
    **{b"\x80" + bytes([protocol]): _scan_pickle for protocol in range(6)},
}
