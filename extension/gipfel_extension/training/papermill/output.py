"""The file that an executed notebook is written to: never half of it, and its folder's place kept."""

import os
from collections.abc import Callable
from pathlib import Path

from papermill.iorw import LocalHandler, papermill_io

from gipfel_cluster.runs import write_atomically

_REMOTE = "://"


class AtomicHandler(LocalHandler):  # type: ignore[misc]
    """Papermill's handler of local files, which writes a file whole or not at all."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def write(self, buf: str, path: str) -> None:
        """Write it beside, then put it in place; the permissions of an earlier file stay."""
        replace(self._folder / path, buf)

    def cwd(self, new_path: str | None) -> str:  # noqa: ARG002 - papermill's protocol
        """Say where relative paths start, which stays as it was at the beginning."""
        return str(self._folder)


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
    handler = papermill_io.get_handler(output)
    if isinstance(handler, AtomicHandler):
        return Path(handler.cwd(None)) / output
    # Papermill remembers where it was called from, since the run itself may be in another folder.
    plain = papermill_io.get_handler("local")
    folder = plain.cwd(None)
    plain.cwd(folder)
    base = Path(folder or Path.cwd())
    papermill_io.register(output, AtomicHandler(base))
    return base / output


def writer(output: str) -> Callable[[str], None]:
    """What writes the text of an output, local or remote, as papermill does."""

    def write(text: str) -> None:
        papermill_io.write(text, output)

    return write
