"""Scan a file, or all files of a directory that hold models, data or notebooks."""

import os
from collections.abc import Iterator
from pathlib import Path

from gipfel_cluster.model import pluralize

from ...telemetry.files import open_regular
from ..model import Item, Judgement
from ..package_index import PackageIndex
from .scan_stream import MODEL_ENDINGS, scan_file
from .streams import Budget

_MAX_FILES = 200_000
_MAX_DEPTH = 40


class TreeScan:
    """A scan of paths; the attributes say what was left out, once :meth:`items` is exhausted.

    Parameters
    ----------
    index
        Looks up packages that notebooks install; by default one without a mirror.

    Attributes
    ----------
    not_judged
        A line for everything that could not be read.
    other_files
        Number of files that hold no model, data or notebook.
    """

    def __init__(self, index: PackageIndex | None = None) -> None:
        self._index = index
        self.not_judged: list[str] = []
        self.other_files = 0

    def items(self, target: Path) -> Iterator[Item]:
        """Yield an item for each recognized file below a directory, or for the file if `target` is one."""
        if not target.is_dir():
            yield self._item(target, _judge(target, self._index, follow=True))
            return
        for path in self._files(target):
            judgement = _judge(path, self._index, follow=False)
            if judgement is None or judgement.recognized or judgement.findings:
                yield self._item(path, judgement)
            else:
                self.other_files += 1

    def _item(self, path: Path, judgement: Judgement | None) -> Item:
        if judgement is None:
            judgement = Judgement.unclear("it can't be opened, or is not a regular file")
        elif not judgement.recognized and judgement.verdict == "plain":
            judgement = Judgement.unclear("its format is not known")
        return Item(path=_shown(path), verdict=judgement.verdict, findings=judgement.findings)

    def _files(self, root: Path) -> Iterator[Path]:
        count = 0
        for folder, names, files in os.walk(root, onerror=self._on_error):
            names.sort()
            if len(Path(folder).relative_to(root).parts) >= _MAX_DEPTH:
                self.not_judged.append(f"{_shown(Path(folder))} is nested too deeply.")
                names.clear()
            for name in sorted(files):
                path = Path(folder, name)
                if path.is_symlink() and path.exists() and not name.lower().endswith(MODEL_ENDINGS):
                    self.other_files += 1
                    continue
                count += 1
                if count > _MAX_FILES:
                    self.not_judged.append(f"{_shown(root)} has more than {pluralize(_MAX_FILES, 'file')}.")
                    return
                # Hugging Face's cache has its models as links into the same directory.
                yield _inside(path, root)

    def _on_error(self, error: OSError) -> None:
        self.not_judged.append(f"{_shown(Path(error.filename or ''))}: {error.strerror}.")


def _inside(path: Path, root: Path) -> Path:
    """Return the target of a link into the same directory, else the path itself."""
    if not path.is_symlink():
        return path
    # Unlike Path.resolve, os.path.realpath does not raise for circular links.
    target = Path(os.path.realpath(path))
    return target if target.is_relative_to(os.path.realpath(root)) else path


def _judge(path: Path, index: PackageIndex | None, *, follow: bool) -> Judgement | None:
    """Return the judgement on a file; None if it can't be opened."""
    try:
        with open_regular(path, follow=follow) as file:
            return scan_file(file, path.name, Budget(package_index=index))
    except OSError:
        return None


def _shown(path: Path) -> str:
    """Return a path for display, with escapes for bytes that JSON and terminals can't hold."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")
