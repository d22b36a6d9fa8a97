"""Layers and mounts: add files to a data set without rewriting it, and mount it in a container.

A layer is a separate image that contains the root hash of the image it extends. Layers of ``data.sqsh`` are
``data.1.sqsh``, ``data.2.sqsh`` and so on, and are mounted beside it, at ``/data.1`` and so on: an EDF can't
merge mounts.
"""

import os
from pathlib import Path

from gipfel_cluster.model import GipfelError

from .manifest import Base, Summary, display_paths, read_summary
from .source import Source
from .squashfs import SUFFIX, SquashfsFile
from .verify import load_entries

_MAX_LAYERS = 100


def layer_path(base: Path, number: int) -> Path:
    """Return the path of a layer, counted from 1."""
    return base.with_name(f"{base.name.removesuffix(SUFFIX)}.{number}{SUFFIX}")


def find_layers(base: Path) -> list[Path]:
    """Return the layers beside an image, in their order.

    Raises
    ------
    GipfelError
        A layer was made for another image, or a summary is missing or not valid.
    """
    found: list[Path] = []
    expected = base
    for number in range(1, _MAX_LAYERS + 1):
        path = layer_path(base, number)
        if not path.exists():
            break
        layer = required_summary(path).base
        below = required_summary(expected)
        # A removal gives the image below a new root hash, and removes nothing that the layer depends on.
        if layer is None or layer.root not in {below.root, *(each.root for each in below.removals)}:
            raise GipfelError(f"{path} is not a layer of {expected.name} as it is now.", "Add it again.")
        found.append(path)
        expected = path
    return found


def next_layer(base: Path) -> tuple[Path, Base]:
    """Return the path of an image's next layer, and its reference to the image that it extends."""
    layers = find_layers(base)
    if len(layers) >= _MAX_LAYERS:
        raise GipfelError(f"{base} has {_MAX_LAYERS} layers.", "Pack all of the data again.")
    last = layers[-1] if layers else base
    return layer_path(base, len(layers) + 1), Base(file=last.name, root=required_summary(last).root)


def refuse_known_paths(base: Path, source: Source) -> None:
    """Raise if a source has a path that an image or one of its layers has, other than a directory.

    Raises
    ------
    GipfelError
        It has; the message names the paths.
    """
    known = {
        path: entry.kind for each in (base, *find_layers(base)) for path, entry in load_entries(each).items()
    }
    both = [each.entry for each in source.entries if each.entry.path in known]
    removed = [each.path for each in both if known[each.path] == "removed"]
    if removed:
        raise GipfelError(
            f"{base.name} had {display_paths(removed)}, which was removed.",
            "Leave it out, or pack all of the data again.",
        )
    clashes = [each.path for each in both if {known[each.path], each.kind} != {"directory"}]
    if clashes:
        raise GipfelError(
            f"{base.name} already has {display_paths(clashes)}.",
            "Rename them, or pack all of the data again.",
        )


def mount_lines(image: Path, destination: str) -> list[str]:
    """Return the EDF mounts of an image and its layers, as ``SOURCE:DESTINATION:sqsh``.

    Raises
    ------
    GipfelError
        The image is not whole, or its path can't be written in an EDF.
    """
    lines = []
    for number, path in enumerate([image, *find_layers(image)] if read_summary(image) else [image]):
        with SquashfsFile(path) as opened:
            source = os.fspath(opened.path.absolute())
        target = f"{destination}.{number}" if number else destination
        if not source.isprintable() or any(each in source for each in ':$"\\'):
            raise GipfelError(f"{source!a} can't be written in an EDF.", "Rename the file or its directory.")
        lines.append(f"{source}:{target}:sqsh")
    return lines


def required_summary(path: Path) -> Summary:
    """Return the summary beside an image, or raise."""
    found = read_summary(path)
    if found is None:
        raise GipfelError(f"{path}.json is missing.", f"Copy it from where {path.name} was packed.")
    return found
