"""Judge files that name dependencies: what of them lets others choose what is installed.

Requirement files come first, then names that may be typing errors, settings of pip and uv with lock files,
and last :func:`dependency_findings`, which recognizes a file by its name.
"""

import codecs
import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gipfel_cluster.installs import command_problems, installed, logical_lines
from gipfel_cluster.model import one_line

from .model import Finding, Severity

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(.*)")
_COMMIT = re.compile(r"@[0-9a-f]{40}(?:$|[#&\s])")
_SHOWN = 4
_SEVERITIES: dict[str, Severity] = {
    "piped-script": "high", "extra-index": "high", "insecure-index": "high", "unpinned-install": "low",
}  # fmt: skip


def problem_findings(text: str) -> Iterator[Finding]:
    """Yield a finding for each kind of problem of shell lines or options of pip."""
    for problem in command_problems(text):
        yield Finding(
            rule=problem.code,
            severity=_SEVERITIES[problem.code],
            message=f"Line {problem.line}: {problem.reason}: {problem.consequence}.",
            fix=problem.fix,
        )


def name_findings(names: Iterator[str]) -> Iterator[Finding]:
    """Yield a finding for each name that may be a typing error."""
    for name in dict.fromkeys(names):
        if meant := likely_meant(name):
            yield Finding(
                rule="similar-name",
                severity="high",
                message=f"{name[:80]} is one letter away from {meant}, and may be another package.",
                fix=f"Write {meant} if you mean that, else except this finding with the reason.",
            )


def requirements_findings(text: str) -> Iterator[Finding]:
    """Yield what is wrong with a requirements file. Source: pip's reference, Requirements File Format."""
    lines = [line.strip() for _, line in logical_lines(text) if line.strip()]
    # Options of a requirements file are those of the command.
    options = "\n".join(line if line.startswith("-") else "" for line in lines)
    yield from problem_findings(options)
    listed = [line for line in lines if not line.startswith("-")]
    yield from name_findings(match[1] for line in listed if (match := _REQUIREMENT.match(line)))
    loose = [line for line in listed if not _is_pinned(line)]
    if loose:
        names = ", ".join(re.split(r"[\s<>=!~;\[@]", line)[0][:60] for line in loose[:_SHOWN])
        more = f" and {len(loose) - _SHOWN} more" if len(loose) > _SHOWN else ""
        message = f"Without a version: {names}{more}. Each installation may bring other code."
        fix = "Lock them: uv pip compile --generate-hashes requirements.in -o requirements.txt."
        yield Finding(rule="unpinned-install", severity="low", message=message, fix=fix)
    elif listed and not any("--hash=" in line for line in listed):
        message = "Versions are pinned, but not their content: an index can deliver other files."
        fix = "Add hashes: uv pip compile --generate-hashes requirements.in -o requirements.txt."
        yield Finding(rule="no-hashes", severity="low", message=message, fix=fix)


def _is_pinned(line: str) -> bool:
    if re.match(r"(\S+\s*@\s*)?(git|hg|svn|bzr)\+", line):
        return _COMMIT.search(line) is not None
    return "==" in line or "--hash=" in line or " @ " in line or line.startswith((".", "/", "file:", "http"))


#: Well-known packages. Source: chosen from Gipfel's `.ci/constraints.txt` and packages of deep learning; a
#: test compares all names of that file. Short names are left out: too much is one letter away from them.
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
#: Real packages that are one letter away from one of them.
_REAL = frozenset(("tensorboardx", "torchx", "torchao", "psycopg"))
_MIN_CHARACTERS = 5


def likely_meant(name: str) -> str:
    """Return the well-known package that a name is one typing error away from; empty if there is none."""
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
    """Return whether one letter was left out, added, replaced, or changed places with its neighbour."""
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


_MAX_NAMES = 20_000


def pip_findings(text: str) -> Iterator[Finding]:
    """Yield what is wrong with a ``pip.conf``.

    Raises
    ------
    ValueError
        It is broken.
    """
    settings = configparser.RawConfigParser(strict=False)
    try:
        settings.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error).splitlines()[0]) from error
    values = {
        key.replace("_", "-"): value for name in settings.sections() for key, value in settings.items(name)
    }
    if values.get("extra-index-url"):
        yield _extra_index("index-url = URL of one index that has all packages")
    insecure = values.get("trusted-host") or any(
        each.strip().startswith("http://")
        for key in ("index-url", "extra-index-url")
        for each in values.get(key, "").split()
    )
    if insecure:
        yield _insecure_index("index-url = https://… without trusted-host")


def uv_findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with a ``uv.toml``, or ``[tool.uv]`` of a ``pyproject.toml``."""
    pip = document.get("pip")
    places = [document, pip if isinstance(pip, dict) else {}]
    if any(str(each.get("index-strategy", "")).startswith("unsafe") for each in places):
        yield _extra_index('index-strategy = "first-index"')
    elif any(each.get("extra-index-url") for each in places):
        yield _extra_index("[[index]] with explicit = true, and [sources] for its packages")
    indexes = document.get("index")
    listed = [each for each in indexes if isinstance(each, dict)] if isinstance(indexes, list) else []
    urls = [str(each.get("url", "")) for each in listed] + [str(each.get("index-url", "")) for each in places]
    if any(url.startswith("http://") for url in urls) or document.get("allow-insecure-host"):
        yield _insecure_index('url = "https://…" without allow-insecure-host')


def project_findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with a ``pyproject.toml``; versions belong into its lock file."""
    tool = document.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    if isinstance(uv, dict):
        yield from uv_findings(uv)
    project = document.get("project")
    listed = project.get("dependencies") if isinstance(project, dict) else None
    names = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    yield from name_findings(_name(each) for each in names[:_MAX_NAMES])


def lock_findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with a ``uv.lock``, a ``poetry.lock`` or a ``pylock.toml``."""
    packages = document.get("package") or document.get("packages")
    listed = [each for each in packages if isinstance(each, dict)] if isinstance(packages, list) else []
    yield from name_findings(str(each.get("name", "")) for each in listed[:_MAX_NAMES])
    unhashed = [
        str(each.get("name", ""))[:60]
        for each in listed[:_MAX_NAMES]
        if _has_files(each) and "hash" not in repr(each)
    ]
    if unhashed:
        message = f"Locked without hashes: {', '.join(unhashed[:4])}."
        yield Finding(rule="no-hashes", severity="medium", message=message, fix="Lock again: uv lock.")
    http = [str(each.get("name", ""))[:60] for each in listed[:_MAX_NAMES] if "'http://" in repr(each)]
    if http:
        yield _insecure_index(f"https:// for {', '.join(http[:4])}")


def npm_lock_findings(text: str) -> Iterator[Finding]:
    """Yield what is wrong with a ``package-lock.json``.

    Raises
    ------
    ValueError
        It is broken.
    """
    document = json.loads(text)
    entries = document.get("packages") if isinstance(document, dict) else None
    unhashed, http = [], []
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        resolved = entry.get("resolved") if isinstance(entry, dict) else None
        if isinstance(resolved, str) and resolved.startswith("http"):
            unhashed += [name] if not entry.get("integrity") else []
            http += [name] if resolved.startswith("http://") else []
    if unhashed:
        message = f"Locked without hashes: {', '.join(each[:80] for each in unhashed[:4])}."
        yield Finding(rule="no-hashes", severity="medium", message=message, fix="Lock again: npm install.")
    if http:
        yield _insecure_index(f"https:// for {', '.join(each[:80] for each in http[:4])}")


def toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML file.

    Raises
    ------
    ValueError
        It is broken.
    """
    return tomllib.loads(text)


def _has_files(package: dict[str, Any]) -> bool:
    source = package.get("source")
    if isinstance(source, dict) and not ("registry" in source or "url" in source):
        return False
    return any(key in package for key in ("files", "wheels", "sdist", "archive"))


def _name(requirement: str) -> str:
    end = next(
        (at for at, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None
    )
    return requirement[:end]


def _extra_index(line: str) -> Finding:
    message = (
        "Packages come from several indexes: the highest version of all is installed, so a public package "
        "can replace your own of the same name."
    )
    return Finding(rule="extra-index", severity="high", message=message, fix=f"Write {line}.")


def _insecure_index(line: str) -> Finding:
    message = "An index is not authenticated: an attacker in the network can choose what is installed."
    return Finding(rule="insecure-index", severity="high", message=message, fix=f"Write {line}.")


_MAX_FINDINGS = 50
#: Byte order marks; that of UTF-32 begins with that of UTF-16. Source: pip's ``_decode_req_file``.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FROM = re.compile(r"\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_RUN = re.compile(r"^\s*(RUN|ENV|ARG)\b", re.IGNORECASE)
_ADD = re.compile(r"^\s*ADD\s+(?!.*--checksum=)(?:--\S+\s+)*https?://", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _shell(text: str) -> Iterator[Finding]:
    yield from problem_findings(text)
    words = (each for _, line in logical_lines(text) for each in installed(line))
    yield from name_findings(match[0] for each in words if (match := _NAME.match(each)))


def _containerfile(text: str) -> Iterator[Finding]:
    """Yield what is wrong with a Containerfile: images without a digest, and its commands."""
    stages: set[str] = set()
    loose: list[str] = []
    for _, line in logical_lines(text):
        if match := _FROM.match(line):
            image = match[1]
            if image.lower() not in {"scratch", *stages} and "@sha256:" not in image and "$" not in image:
                loose.append(image[:200])
            stages |= {match[2].lower()} if match[2] else set()
    if loose:
        message = f"Images without a digest, which may change: {', '.join(loose[:4])}."
        fix = f"Write FROM {loose[0]}@sha256:DIGEST (podman inspect --format '{{{{.Digest}}}}' {loose[0]})."
        yield Finding(rule="unpinned-image", severity="low", message=message, fix=fix)
    if any(_ADD.match(line) for _, line in logical_lines(text)):
        message = "ADD takes a file from the internet without a checksum."
        yield Finding(
            rule="unpinned-download", severity="medium", message=message, fix="Write ADD --checksum=sha256:…."
        )
    yield from _shell("\n".join(_RUN.sub("", line) for line in text.splitlines()))


_KINDS: tuple[tuple[re.Pattern[str], Callable[[str], Iterable[Finding]]], ...] = (
    (re.compile(r"(.*[-_.])?(requirements|constraints)([-_.].*)?\.(txt|in)"), requirements_findings),
    (re.compile(r"pip\.(conf|ini)"), pip_findings),
    (re.compile(r"uv\.toml"), lambda text: uv_findings(toml(text))),
    (re.compile(r"pyproject\.toml"), lambda text: project_findings(toml(text))),
    (re.compile(r"(uv|poetry)\.lock|pylock(\..+)?\.toml"), lambda text: lock_findings(toml(text))),
    (re.compile(r"package-lock\.json"), npm_lock_findings),
    (re.compile(r"((.+\.)?(Containerfile|Dockerfile)|(Containerfile|Dockerfile)\..+)"), _containerfile),
    (re.compile(r".+\.setup"), _shell),
)


def is_dependency_file(path: str) -> bool:
    """Return whether a file's name says that it names dependencies."""
    return _kind(path) is not None


def _text(content: bytes) -> str:
    """Return a file as text; like pip, by its mark of UTF-16 or UTF-32 if it has one."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, errors="replace")
    return content.decode(errors="replace")


def dependency_findings(path: str, content: bytes) -> list[Finding]:
    """Return what is wrong with a file of dependencies; nothing for another file.

    Raises
    ------
    ValueError
        The file is broken.
    """
    kind = _kind(path)
    if kind is None:
        return []
    try:
        found = dict.fromkeys(kind(_text(content)))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return [each.model_copy(update={"message": one_line(each.message)}) for each in found][:_MAX_FINDINGS]


def _kind(path: str) -> Callable[[str], Iterable[Finding]] | None:
    name = path.rpartition("/")[2]
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)
