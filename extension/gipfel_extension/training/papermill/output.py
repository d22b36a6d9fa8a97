"""The file that an executed notebook is written to: never half of it, and its folder's place kept."""

import os
from collections.abc import Callable
from pathlib import Path

from papermill.iorw import LocalHandler, papermill_io

from gipfel_cluster.runs import write_atomically

_REMOTE = "://"


class AtomicHandler(LocalHandler):  # type: ignore[misc]
    """Papermill's handler of local files, which writes a file whole or not at all.

    It stays registered when the run has ended, and a later run may be called from another folder: relative
    paths start where papermill's own handler has them start at that time.
    """

    def read(self, path: str) -> str:
        """Read a file as papermill does."""
        return str(papermill_io.get_handler("local").read(path))

    def write(self, buf: str, path: str) -> None:
        """Write it beside, then put it in place; the permissions of an earlier file stay."""
        replace(_called_from() / path, buf)

    def listdir(self, path: str) -> list[str]:
        """List a folder as papermill does."""
        return list(papermill_io.get_handler("local").listdir(path))


def replace(path: Path, text: str) -> None:
    """Replace a file's content, for its owner alone where it is new; through a link, what it points to."""
    target = path.resolve()
    try:
        mode: int | None = target.stat().st_mode & 0o777
    except OSError:
        mode = None
    # Half a character of two, which JSON can hold and UTF-8 can't, as JSON writes it.
    write_atomically(target, text.encode(errors="backslashreplace"))
    if mode is not None:
        os.chmod(target, mode)  # noqa: PTH101


def local_path(output: str | None) -> Path | None:
    """Where a local output is, however the kernel's folder changes later; None for a remote one or none.

    From now on papermill itself writes this output atomically, too.
    """
    if not output or output == "-" or _REMOTE in output:
        return None
    if not isinstance(papermill_io.get_handler(output), AtomicHandler):
        papermill_io.register(output, AtomicHandler())
    return _called_from() / output


def writer(output: str, local: Path | None) -> Callable[[str], None]:
    """Return what writes the text of an output: to the path `local` if it has one, else as papermill does."""

    def write(text: str) -> None:
        if local is None:
            papermill_io.write(text, output)
        else:
            replace(local, text)

    return write


def _called_from() -> Path:
    """Return the folder that papermill was called from, which the run itself may have left."""
    plain = papermill_io.get_handler("local")
    folder = plain.cwd(None)
    plain.cwd(folder)
    return Path(folder or Path.cwd())
