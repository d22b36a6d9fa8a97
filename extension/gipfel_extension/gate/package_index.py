"""Look packages up by name: withdrawn releases, names that belong to the site, mistyped names.

Nothing is fetched. `PackageIndex` reads a local mirror of a public index as bandersnatch and devpi store it:
``<dir>/simple/<name>/`` holds a page of the simple API, ``index.v1_json`` or ``index.json`` (PEP 691), or
``index.html`` with ``data-yanked`` (PEP 592). Without a mirror, `not_scanned` says that releases were not
looked up.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from gipfel_cluster.model import one_line

from ..telemetry.files import read_regular
from .model import Finding

if TYPE_CHECKING:
    from .index_listing import Listing

INDEX, OWN = "GIPFEL_PACKAGE_INDEX", "GIPFEL_OWN_PACKAGES"
_FILES = ("index.v1_json", "index.json", "index.html")
_PLACES = ("simple", "web/simple", "")
_MAX_BYTES = 64 << 20
_MAX_AGE_S = 7 * 86400.0
_SHOWN = 4
_PUBLIC = re.compile(
    r"https?://(?:[^/@]*@)?(?:pypi\.org|(?:test|upload)\.pypi\.org|pypi\.python\.org|files\.pythonhosted\.org|"
    r"registry\.npmjs\.org|registry\.yarnpkg\.com)(?:[:/]|$)"
)
#: Source of a locked package that names none: poetry then takes it from PyPI.
PYPI = "PyPI"
_MOST_PATTERNS = 1000


@dataclass(frozen=True)
class Pin:
    """A package that a file names.

    ``version`` is empty if the file allows several versions; ``line`` is 0 if unknown; ``source`` is the URL
    of the package's index or file, empty if the file names none; ``ecosystem`` is OSV's name.
    """

    name: str
    version: str = ""
    line: int = 0
    source: str = ""
    ecosystem: str = "PyPI"


class PackageIndex:
    """A local mirror of a public index, and the names of the site's own packages.

    Parameters
    ----------
    root
        Directory of the mirror; None if there is none.
    own
        Patterns of the site's own names, such as ``acme-*`` or ``@acme/*``.
    several
        Whether environment variables or settings configure several indexes, which then apply to every file.

    Attributes
    ----------
    not_judged
        A line for everything that the mirror should list but does not.
    not_scanned
        Lines on what could not be judged without a mirror; empty if there is one.
    """

    def __init__(
        self,
        root: Path | None = None,
        own: Sequence[str] = (),
        *,
        several: bool = False,
        now: float | None = None,
    ) -> None:
        self.several = several
        self._root, self._now = root, time.time() if now is None else now
        self._own = tuple(normal_package(each) for each in own[:_MOST_PATTERNS])
        self._missing: list[str] = []
        self._newest_s = 0.0
        self._asked = self._asked_own = False
        self._broken: list[str] = []
        self._listings: dict[str, Listing | None] = {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "PackageIndex":
        """Return the index that ``GIPFEL_PACKAGE_INDEX`` and ``GIPFEL_OWN_PACKAGES`` configure."""
        named = environment.get(INDEX, "")
        own = environment.get(OWN, "").replace(",", " ").split()
        return cls(Path(named) if named else None, own)

    def unused(self, *, several: bool = False) -> "PackageIndex":
        """Return a copy for another target, without the lines that lookups have collected."""
        return PackageIndex(self._root, self._own, several=several, now=self._now)

    @property
    def state(self) -> str:
        """Return a text that changes when answers may change; it also changes daily, since mirrors age."""
        words = [str(self._root), *self._own, datetime.fromtimestamp(self._now, UTC).date().isoformat()]
        return hashlib.sha256("\n".join(words).encode(errors="surrogateescape")).hexdigest()[:16]

    @property
    def not_judged(self) -> list[str]:
        """Return a line for everything that the mirror should list but does not."""
        lines = list(self._broken)
        if self._missing:
            more = f" and {len(self._missing) - _SHOWN} more" if len(self._missing) > _SHOWN else ""
            names = ", ".join(self._missing[:_SHOWN])
            lines.append(
                f"Whether releases were withdrawn could not be judged: {self._root} does not list "
                f"{names}{more}."
            )
        age_s = self._now - self._newest_s
        if self._newest_s and age_s > _MAX_AGE_S:
            lines.append(
                f"The package index {self._root} is {age_s / 86400:.0f} days old. Update the mirror."
            )
        return [one_line(each) for each in lines]

    @property
    def not_scanned(self) -> list[str]:
        """Return lines on what could not be judged without a mirror; empty if there is one."""
        if self._root is not None or not self._asked:
            return []
        own = " and names of the site's own packages are on a public index" if self._asked_own else ""
        line = f"Whether releases were withdrawn (yanked){own} could not be judged: {INDEX} names no mirror."
        return [line]

    def findings(self, pins: Iterable[Pin], *, several: bool = False) -> Iterator[Finding]:
        """Yield mistyped names, withdrawn releases, and own names that a public index may or does serve.

        Parameters
        ----------
        several
            Whether the file names several indexes for all of its packages.
        """
        named = list(dict.fromkeys(pins))
        yield from name_findings(named)
        for pin in named:
            if self._is_own(pin):
                self._asked = self._asked_own = True
                yield from self._own_findings(pin, several=several)
            elif pin.ecosystem == "PyPI" and pin.version:
                self._asked = True
                yield from self._withdrawn(pin)

    def _is_own(self, pin: Pin) -> bool:
        name = normal_package(pin.name)
        return any(fnmatchcase(name, each) for each in self._own)

    def _own_findings(self, pin: Pin, *, several: bool) -> Iterator[Finding]:
        if pin.source == PYPI or _PUBLIC.match(pin.source):
            why = "comes from a public index, so it is a package of someone else"
        elif several and not pin.source:
            why = (
                "is looked for on several indexes: who has the name on a public one chooses what is installed"
            )
        elif not pin.source and self._listing(pin) is not None:
            why = f"is also the name of a public package, which {self._root} lists"
        else:
            return
        name = pin.name[:80]
        fix = (
            f'Write [tool.uv.sources] {name} = {{ index = "NAME" }} with [[tool.uv.index]] explicit = true, '
            "or for pip --index-url with the site's index alone."
        )
        if pin.ecosystem == "npm":
            fix = f"Write {name.partition('/')[0]}:registry=https://SITE into .npmrc, and lock again."
        message = f"{_line(pin)}{name} is a name of the site's own packages, and {why}."
        yield Finding(rule="own-name", severity="high", message=message, fix=fix)

    def _withdrawn(self, pin: Pin) -> Iterator[Finding]:
        if self._root is None:
            return
        listing = self._listing(pin)
        if listing is not None and listing.status == "quarantined":
            # An index no longer lists the files of a quarantined project.
            message = f"{_line(pin)}the index has quarantined {pin.name}, as it does for malware."
            fix = "Write another package, and treat machines that had it as taken over."
            yield Finding(rule="quarantined", severity="critical", message=message, fix=fix)
            return
        release = listing.release(pin.version) if listing else None
        if listing is None or release is None:
            self._missing.append(f"{pin.name[:60]} {pin.version[:40]}")
        elif (reason := listing.withdrawn.get(release)) is not None:
            why = f": {reason}" if reason else ""
            message = f"{_line(pin)}{pin.name} {pin.version} was withdrawn (yanked){why}."
            better = listing.better(release)
            fix = f"Write {pin.name}=={better}, and lock again." if better else "Write another package."
            yield Finding(rule="yanked", severity="medium", message=message, fix=fix)

    def _listing(self, pin: Pin) -> "Listing | None":
        """Return the mirror's listing of a package; None if it is missing or can't be read."""
        name = normal_package(pin.name)
        if self._root is None or pin.ecosystem != "PyPI" or not re.fullmatch(r"[a-z0-9-]+", name):
            return None
        if name not in self._listings:
            self._listings[name] = self._read(name)
        return self._listings[name]

    def _read(self, name: str) -> "Listing | None":
        # Imported only if there is a mirror: the parsers of versions and HTML take a while to import.
        from .index_listing import parse_listing  # noqa: PLC0415

        for place in _PLACES:
            for file in _FILES:
                path = Path(self._root or "", place, name, file)
                try:
                    content = read_regular(path, _MAX_BYTES, follow=True)
                    self._newest_s = max(self._newest_s, *map(_mtime, (path, path.parents[1], *_marks(path))))
                    return parse_listing(content, html=file == "index.html")
                except FileNotFoundError:
                    continue
                except (OSError, ValueError, RecursionError, TypeError, AttributeError) as error:
                    why = getattr(error, "strerror", "") or "it is broken"
                    self._broken.append(
                        f"The listing {path} could not be judged: {why[:100]}. Update the mirror."
                    )
                    return None
        return None


def normal_package(name: str) -> str:
    """Return a name as PyPI compares names; a scoped npm name is only lowercased."""
    return name.lower() if name.startswith("@") else re.sub(r"[-_.]+", "-", name).lower()


def _line(pin: Pin) -> str:
    return f"Line {pin.line}: " if pin.line else ""


def _marks(path: Path) -> Iterator[Path]:
    """Yield the files that mirror programs rewrite at each update, even if no listing changes."""
    simple = path.parents[1]
    yield from (simple / "index.html", simple / "index.v1_json", simple.parent / "last-modified")


def _mtime(path: Path) -> float:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116 - a missing one is usual
    except OSError:
        return 0.0


def name_findings(pins: Iterable[Pin]) -> Iterator[Finding]:
    """Yield a finding for each name that may be mistyped."""
    for name, pin in {each.name: each for each in pins if each.ecosystem == "PyPI"}.items():
        if meant := likely_meant(name):
            yield Finding(
                rule="similar-name",
                severity="high",
                message=f"{_line(pin)}{name[:80]} is one letter away from {meant}, and may be another one.",
                fix=f"Write {meant} if you mean that, else except this finding with the reason.",
            )


#: Well-known packages, chosen from Gipfel's `.ci/constraints.txt` and from deep learning packages. A test
#: checks that no name in that file is a finding. Short names are left out: too many names are close to them.
_NAMES = (
    "accelerate aiohttp albumentations apache-airflow beautifulsoup4 bitsandbytes boto3 certifi chardet "
    "colorama colossalai cryptography datasets deepspeed diffusers django docker einops fairscale fastapi "
    "flash-attn gradio httpx huggingface-hub ipykernel ipywidgets jinja2 joblib jsonschema jupyterhub "
    "jupyterlab jupyter keras langchain lightning litellm llama-cpp-python matplotlib megatron-core "
    "mlflow mpi4py "
    "nibabel notebook numpy nvidia-ml-py openai opencv-python optuna pandas papermill paramiko pillow plotly "
    "polars protobuf psutil psycopg2 pyarrow pycryptodome pydantic pytest python-dateutil pytorch-lightning "
    "pyyaml rasterio requests safetensors scikit-image scikit-learn scipy seaborn selenium sentencepiece "
    "setuptools sqlalchemy sentence-transformers tensorboard tensorflow tiktoken tokenizers torch torchaudio "
    "torchvision tornado transformers triton typing-extensions urllib3 virtualenv vllm wandb websockets "
    "xarray xformers xgboost"
)
KNOWN = frozenset(_NAMES.split())
#: Existing packages that are one letter away from a well-known one.
_REAL = frozenset(("tensorboardx", "torchx", "torchao", "psycopg"))
_MIN_CHARACTERS = 5


def likely_meant(name: str) -> str:
    """Return the well-known package that a name differs from by one typing error; empty if there is none."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    if len(normal) < _MIN_CHARACTERS or normal in KNOWN or normal in _REAL:
        return ""
    candidates = {normal.replace("-", "")}
    for known in sorted(KNOWN):
        if len(known) >= _MIN_CHARACTERS and (
            _is_one_error(normal, known) or known.replace("-", "") in candidates
        ):
            return known
    return ""


def _is_one_error(one: str, other: str) -> bool:
    """Return whether two names differ by one letter that is missing, added, replaced, or swapped."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    start = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        return True
    left, right = one[start:], other[start:]
    if len(left) == len(right):
        swapped = left[1:2] + left[:1] + left[2:]
        return left[1:] == right[1:] or (len(left) > 1 and swapped == right)
    return left[1:] == right if len(left) > len(right) else left == right[1:]
