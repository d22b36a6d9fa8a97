"""A small directory with everything that is hard to pack, and a file to be staged."""

import os
from pathlib import Path

from gipfel_extension.data.stage.model import StageItem, StageSpec, list_items
from gipfel_extension.data.stage.wire import CHUNK_BYTES

ODD = b"caf\xe9 \\n\n*?[\"'$"


def make_tree(root: Path) -> Path:
    """Hard links, a sparse file, attributes, odd names, loops of links, files of several blocks."""
    (root / "deep/er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "deep/text").write_bytes(b"some words that compress well " * 20_000)
    (root / "deep/er/noise").write_bytes(bytes(os.urandom(300_000)))
    (root / "nothing").touch()
    (root / "run").write_bytes(b"#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "deep/run again").hardlink_to(root / "run")
    with (root / "sparse").open("wb") as file:
        file.truncate(6 << 20)
        file.seek(5 << 20)
        file.write(b"end")
    name = os.fsencode(root) + b"/" + ODD
    with open(name, "wb") as file:
        file.write(b"odd")
    os.link(name, os.fsencode(root) + b"/odd-link")
    (root / ("long-" + "x" * 200)).write_bytes(b"long")
    (root / "deep/loop").symlink_to("../deep")
    (root / "self").symlink_to("self")
    os.symlink(b"nowhere-\xff\n", os.fsencode(root) + b"/dangling")
    os.setxattr(root / "run", "user.label", b"a\0\xff=b\n")
    return root


def contents(root: Path) -> dict[bytes, object]:
    """Return what a program sees: bytes, targets, or None for a directory, with the mode."""
    found: dict[bytes, object] = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            state = os.lstat(path)
            if os.path.islink(path):
                value: object = os.readlink(path)
            elif os.path.isdir(path):
                value = None
            else:
                with open(path, "rb") as file:
                    value = file.read()
            mode = 0 if os.path.islink(path) else state.st_mode & 0o777
            found[os.path.relpath(path, top)] = (value, mode)
    return found


def stage_item(folder: Path, chunks: float = 7.3) -> StageItem:
    """Return a file of random bytes as staging lists it."""
    path = folder / "source.bin"
    path.write_bytes(os.urandom(int(chunks * CHUNK_BYTES)))
    return list_items(StageSpec(data=(str(path),)))[0]
