"""Large data sets: ``DRAWS`` small files, and a sparse file of as many megabytes; packed, verified, compared.

Cells of awkward data have a hundredth as many small directories: names with newlines and of bytes that are
not UTF-8 and loops of links, which must be read back equal; unreadable files and files that grow while they
are packed, which must be refused by name and leave nothing behind.

The sparse file is nearly all hole, so that it needs no space on disk. What is measured: how many paths of the
image are not as in the directory, whether the image verifies and packing twice gives the same bytes, and how
far the size estimated before packing is from the image's.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

# Last: a benchmark and a campaign may have one name, as `causes`.
sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from parts.small_files import write_files

from gipfel_cluster.model import GipfelError
from gipfel_extension.data.options import Plan
from gipfel_extension.data.pack import PackRequest, pack
from gipfel_extension.data.verify import compare, verify

DRAWS = 20_000
MEASURED = (Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "data",)
ESTIMATE = 0.10  # share of the image's bytes by which the estimate may be wrong

_MEGABYTE = 1_000_000
_NOBODY = 65534
#: Bytes of names: all that a name may have and readers may not expect.
_ODD = b"\n\t\r \\\"'*?[]{}%$\x01\x1b\x7f\x80\xbf\xc3\xe2\xf5\xffaZ.-~"
#: Below this the image's own tables and padding count more than its data.
_MIN_IMAGE_BYTES = 1 << 20


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each cell."""
    return {
        "small-files.random": partial(measure, _small_files, "random", seed, draws),
        "small-files.sequential": partial(measure, _small_files, "sequential", seed, draws),
        "noise.random": partial(measure, _noise, "random", seed, draws),
        "sparse.sequential": partial(measure, _sparse, "sequential", seed, draws),
        "awkward.names": partial(measure_awkward, "names", seed, draws // 100),
        "awkward.unreadable": partial(measure_awkward, "unreadable", seed, draws // 100),
        "awkward.growing": partial(measure_awkward, "growing", seed, draws // 100),
    }


def measure(write: Callable[[Path, int, int], None], access: str, seed: int, draws: int) -> dict[str, Any]:
    """Pack, verify and compare one data set."""
    plans: list[Plan] = []
    with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as name:
        source, image = Path(name) / "source", Path(name) / "packed.sqsh"
        write(source, seed, draws)
        request = PackRequest(
            source, image, access=access, replace=True, environment=dict(os.environ),
            on_plan=lambda _, plan: plans.append(plan),
        )  # fmt: skip
        roots = {pack(request).root, (summary := pack(request)).root}
        checked = verify(image)
        found = compare(image, source)
        return {
            "entries": summary.files,
            "data_bytes": summary.data_bytes,
            "image_bytes": summary.bytes,
            "estimated_bytes": plans[0].estimated_bytes,
            "different": len(found.added) + len(found.removed) + len(found.changed),
            "problems": list(checked.problems),
            "images": len(roots),
        }


def measure_awkward(kind: str, seed: int, draws: int) -> dict[str, Any]:
    """Pack small directories of one kind; return what was wrong, in a process that is not root."""
    draw = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as name:
        folder, found = Path(name), Path(name) / "found.json"
        folder.chmod(0o777)
        process = os.fork()
        if not process:
            code = 1
            try:
                if not os.getuid():
                    os.setgroups([])
                    os.setgid(_NOBODY)
                    os.setuid(_NOBODY)
                problems = [
                    each for number in range(draws) for each in _one(kind, folder / str(number), draw)
                ]
                found.write_text(json.dumps(problems))
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(process, 0)[1]
        problems = json.loads(found.read_text()) if not status else [f"ended with status {status}"]
    return {
        "entries": draws, "data_bytes": 0, "image_bytes": 0, "estimated_bytes": 0, "different": 0,
        "problems": problems, "images": 1,
    }  # fmt: skip


def _one(kind: str, folder: Path, draw: random.Random) -> list[str]:
    """Pack one small directory; return what was wrong."""
    source, image = folder / "source", folder / "a.sqsh"
    source.mkdir(parents=True)
    files = []
    for number in range(draw.randint(1, 20)):
        deep = source / "/".join("d" * draw.randint(1, 3) for _ in range(draw.randint(0, 3)))
        deep.mkdir(parents=True, exist_ok=True)
        odd = bytes(draw.choice(_ODD) for _ in range(draw.randint(1, 30))) if kind == "names" else b"f"
        files.append(deep / os.fsdecode(str(number).encode() + odd))
        files[-1].write_bytes(draw.randbytes(draw.choice((0, 10, 5000, 200_000))))
    if kind == "names":
        for number, target in enumerate((".", "..", "loop-0", f"../{source.name}", "loop-3/loop-4")):
            (draw.choice(files).parent / f"loop-{number}").symlink_to(target)
    wrong = draw.choice(files)
    if kind == "unreadable":
        wrong.chmod(draw.choice((0o000, 0o200, 0o333)))

    def grow(*_: object) -> None:
        if kind == "growing":
            with wrong.open("ab") as file:
                file.write(draw.randbytes(draw.choice((1, 5000, 5_000_000))))

    try:
        pack(PackRequest(source, image, environment=dict(os.environ), on_plan=grow))
    except GipfelError as error:
        left = sorted(each.name for each in folder.iterdir())
        named = kind != "names" and wrong.name in str(error) and left == ["source"]
        return [] if named else [f"{error}; left {left}"]
    if kind != "names":
        return [f"{wrong} was packed"]
    difference, checked = compare(image, source), verify(image)
    return [*difference.added, *difference.removed, *difference.changed, *checked.problems]


def line(document: Mapping[str, Any]) -> str:
    """Return a cell's result as one line."""
    return (
        f"{document['entries']} files, {document['data_bytes'] / 1e6:.0f} MB in "
        f"{document['image_bytes'] / 1e6:.1f} MB (estimated {document['estimated_bytes'] / 1e6:.1f}), "
        f"{document['different']} different, {len(document['problems'])} problems"
    )


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of each cell."""
    rows = []
    for name, each in documents.items():
        wrong = each["different"] + len(each["problems"]) + each["images"] - 1
        rows.append(_row(f"{name}.wrong", wrong, each["entries"], "files", wrong / each["entries"], 0.0))
        if each["image_bytes"] >= _MIN_IMAGE_BYTES and not name.startswith("sparse"):
            ours, actual = each["estimated_bytes"] / 1e6, each["image_bytes"] / 1e6
            rows.append(_row(f"{name}.estimate", ours, actual, "MB", abs(ours / actual - 1), ESTIMATE))
    return rows


def _row(name: str, ours: float, peer: float, unit: str, ratio: float, bound: float) -> dict[str, Any]:
    return {
        "name": name, "ours": ours, "peer": peer, "unit": unit,
        "ratio": ratio, "bound": bound, "holds": ratio <= bound,
    }  # fmt: skip


def _small_files(source: Path, seed: int, draws: int) -> None:
    write_files(source, draws, random.Random(seed))


def _noise(source: Path, seed: int, draws: int) -> None:
    draw = random.Random(seed)
    source.mkdir()
    for number in range(draws // 10):
        (source / str(number)).write_bytes(draw.randbytes(draw.randint(10_000, 100_000)))


def _sparse(source: Path, seed: int, draws: int) -> None:
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(draws * _MEGABYTE)
        file.seek(random.Random(seed).randrange(draws) * _MEGABYTE)
        file.write(b"in the middle")
    shutil.copyfile(__file__, source / "small")
