"""Stripes of large files on Lustre: over how many storage targets ``lfs getstripe`` says a file is spread.

A file on one target is read at the speed of one target, however many nodes read it.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: Size from which a shared file should be spread, and time that ``lfs`` may take.
LARGE_BYTES = 1 << 30
_TIMEOUT_S = 10.0
_MAX_OUTPUT = 1 << 20
_COUNT = re.compile(r"^\s*(?:lmm_)?stripe_count:\s*(-?\d+)", re.MULTILINE)
_SIZE = re.compile(r"\b(?:lmm_)?stripe_size:\s*(\d+)")
_COMPONENT = re.compile(r"^\s*(?:- )?lcme_id:", re.MULTILINE)
_START = re.compile(r"lcme_extent\.e_start:\s*(\d+)")
_END = re.compile(r"lcme_extent\.e_end:\s*(EOF|\d+)")
_FLAGS = re.compile(r"lcme_flags:\s*(\S+)")


@dataclass(frozen=True)
class Component:
    """A part of a file with its own stripes; `end` None is the end of the file, `count` -1 all targets."""

    start: int
    end: int | None
    count: int
    size: int
    initialized: bool = True


@dataclass(frozen=True)
class SiteStripes:
    """Stripes that large files should have at this site, as ``GIPFEL_STRIPES=32x4M`` says."""

    count: int = 32
    size: str = "4M"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "SiteStripes":
        """Return the site's stripes.

        Raises
        ------
        ValueError
            The variable is not valid.
        """
        text = environment.get("GIPFEL_STRIPES", "")
        if not text:
            return cls()
        found = re.fullmatch(r"(-1|[1-9]\d{0,3})x([1-9]\d{0,4}[KMG])", text)
        if found is None:
            raise ValueError(f"GIPFEL_STRIPES={text!r} is not of the form 32x4M")
        return cls(int(found[1]), found[2])


def parse_getstripe(text: str) -> list[Component]:
    """Return the components in the output of ``lfs getstripe``: plain, composite or ``--yaml``."""
    parts = _COMPONENT.split(text)
    if len(parts) == 1:
        count, size = _COUNT.search(text), _SIZE.search(text)
        if count is None:
            return []
        return [Component(0, None, int(count[1]), int(size[1]) if size else 0)]
    found = []
    for part in parts[1:]:
        count, size, start, end = (each.search(part) for each in (_COUNT, _SIZE, _START, _END))
        if count is None or start is None or end is None:
            continue
        flags = _FLAGS.search(part)
        found.append(
            Component(
                int(start[1]),
                None if end[1] == "EOF" else int(end[1]),
                int(count[1]),
                int(size[1]) if size else 0,
                flags is None or "init" in flags[1],
            )
        )
    return found


def stripes_of(components: list[Component], size: int) -> int | None:
    """Return over how many targets most bytes of a file of this size are spread; -1 is all, None unknown."""
    shares: dict[int, int] = {}
    for each in components:
        if not each.initialized:
            continue
        end = size if each.end is None else min(each.end, size)
        if end > each.start:
            shares[each.count] = shares.get(each.count, 0) + end - each.start
    return max(shares, key=lambda count: shares[count]) if shares else None


def read_stripes(path: Path, size: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return over how many targets a file is spread; None where ``lfs`` does not say."""
    lfs = shutil.which("lfs", path=environment.get("PATH"))
    if lfs is None:
        return None
    try:
        done = subprocess.run(
            [lfs, "getstripe", "--", str(path)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return stripes_of(parse_getstripe(done.stdout[:_MAX_OUTPUT].decode(errors="replace")), size)


def mending(path: str, size: int, stripes: int | None, site: SiteStripes) -> str:
    """Return what to do about a file's stripes, with the command; empty where they suffice or are unknown."""
    if stripes is None or stripes < 0 or size < LARGE_BYTES:
        return ""
    # A file of 2 GiB gains nothing from 32 targets.
    wanted = site.count if site.count < 0 else min(site.count, max(2, size >> 28))
    if 0 < wanted <= 2 * stripes:
        return ""
    targets = "1 storage target" if stripes == 1 else f"{stripes} storage targets"
    command = f"lfs migrate --stripe-count {wanted} --stripe-size {site.size} {shlex.quote(path)}"
    return f"{path} ({size / 1e9:.1f} GB) is spread over {targets}. While nothing writes to it: {command}"
