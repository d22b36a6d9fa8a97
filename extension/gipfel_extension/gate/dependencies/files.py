"""Recognize a file of dependencies by its name, and judge it."""

import re
from collections.abc import Callable, Iterable, Iterator

from gipfel_cluster.installs import installed, logical_lines
from gipfel_cluster.model import one_line

from ..model import Finding
from .requirements import name_findings, problem_findings, requirements_findings
from .settings import lock_findings, npm_lock_findings, pip_findings, project_findings, toml, uv_findings

_MAX_FINDINGS = 50
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
        found = dict.fromkeys(kind(content.decode(errors="replace")))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return [each.model_copy(update={"message": one_line(each.message)}) for each in found][:_MAX_FINDINGS]


def _kind(path: str) -> Callable[[str], Iterable[Finding]] | None:
    name = path.rpartition("/")[2]
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)
