"""Judge files that name dependencies: find lines that let somebody else choose what is installed.

The module has requirements files first, then settings of pip, uv and npm, and last
:func:`dependency_findings`, which selects the check by the file's name.
"""

import codecs
import configparser
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gipfel_cluster.installs import command_problems, installed, logical_lines
from gipfel_cluster.model import one_line

from .installation import (
    MAX_NAMES,
    at_line,
    insecure_index,
    line_of_name,
    lock_findings,
    npm_lock_findings,
    package_json_findings,
    project_hook_findings,
    setup_findings,
    toml,
)
from .installation import RULE as INSTALL_HOOK
from .model import Finding, Severity
from .other_locks import pipfile_findings, yarn_findings
from .package_index import PackageIndex, Pin, normal_package

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(.*)")
_COMMIT = re.compile(r"@[0-9a-f]{40}(?:$|[#&\s])")
_VERSION = re.compile(r"===?\s*([A-Za-z0-9.!+_-]+)(?=$|[\s;])")
_INDEX = re.compile(r"^(?:-i|--index-url)[ =]\s*(\S+)")
_FROM_SOURCE = re.compile(r"--no-binary[ =]\s*\S+")
_SHOWN = 4
_SEVERITIES: dict[str, Severity] = {
    "piped-script": "high", "extra-index": "high", "insecure-index": "high", "unpinned-install": "low",
}  # fmt: skip


def problem_findings(text: str) -> Iterator[Finding]:
    """Yield a finding for each kind of problem in shell lines or pip options."""
    for problem in command_problems(text):
        yield Finding(
            rule=problem.code,
            severity=_SEVERITIES[problem.code],
            message=f"Line {problem.line}: {problem.reason}: {problem.consequence}.",
            fix=problem.fix,
        )


def requirements_findings(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a requirements file. Source: pip's reference, Requirements File Format."""
    lines = [(number, line.strip()) for number, line in logical_lines(text) if line.strip()]
    # A requirements file takes the options of the pip command. Keep each at its line, for the line numbers.
    options = [""] * (max((number for number, _ in lines), default=0))
    for number, line in lines:
        options[number - 1] = line if line.startswith("-") else ""
    problems = list(problem_findings("\n".join(options)))
    yield from problems
    if line := next((line for line in options if _FROM_SOURCE.search(line)), ""):
        yield build_finding(options.index(line) + 1, line)
    listed = [(number, line) for number, line in lines if not line.startswith("-")]
    hashed = any("--hash=" in line for _, line in listed)
    several = not hashed and (index.several or any(each.rule == "extra-index" for each in problems))
    named = next((match[1] for line in options if (match := _INDEX.search(line))), "")
    yield from index.findings(_requirement_pins(listed, named), several=several)
    loose = [(number, line) for number, line in listed if not _is_pinned(line)]
    if loose:
        names = ", ".join(re.split(r"[\s<>=!~;\[@]", line)[0][:60] for _, line in loose[:_SHOWN])
        more = f" and {len(loose) - _SHOWN} more" if len(loose) > _SHOWN else ""
        message = (
            f"Line {loose[0][0]}: without a version: {names}{more}. Each installation may bring other code."
        )
        fix = "Lock them: uv pip compile --generate-hashes requirements.in -o requirements.txt."
        yield Finding(rule="unpinned-install", severity="low", message=message, fix=fix)
    elif listed and not hashed:
        message = "Versions are pinned, but not their content: an index can deliver other files."
        fix = "Add hashes: uv pip compile --generate-hashes requirements.in -o requirements.txt."
        yield Finding(rule="no-hashes", severity="low", message=message, fix=fix)


def _requirement_pins(listed: Iterable[tuple[int, str]], index: str) -> Iterator[Pin]:
    """Yield the packages of requirements from `index`, or from the URL of a line ``NAME @ URL``."""
    for number, line in listed:
        if match := _REQUIREMENT.match(line):
            version = _VERSION.match(match[3])
            source = match[3][1:].strip() if match[3].startswith("@") else index
            yield Pin(match[1], version[1] if version else "", number, source)


def build_finding(line: int, option: str) -> Finding:
    """Return the finding for an option that makes pip build packages from source, which runs their code."""
    message = (
        f"Line {line}: {option[:80]} builds from source, so that code of the package runs at installation."
    )
    fix = "Write --only-binary :all:, or build a wheel once without a network, and install that."
    return Finding(rule=INSTALL_HOOK, severity="low", message=message, fix=fix)


def _is_pinned(line: str) -> bool:
    if re.match(r"(\S+\s*@\s*)?(git|hg|svn|bzr)\+", line):
        return _COMMIT.search(line) is not None
    return "==" in line or "--hash=" in line or " @ " in line or line.startswith((".", "/", "file:", "http"))


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
        line = _line_with(text, r"extra[-_]index[-_]url")
        yield _extra_index("index-url = URL of one index that has all packages", line)
    insecure = values.get("trusted-host") or any(
        each.strip().startswith("http://")
        for key in ("index-url", "extra-index-url")
        for each in values.get(key, "").split()
    )
    if insecure:
        line = _line_with(text, r"trusted[-_]host|http://")
        yield insecure_index("index-url = https://… without trusted-host", line)
    if built := values.get("no-binary"):
        yield build_finding(_line_with(text, r"no[-_]binary"), f"no-binary = {built}")


def uv_findings(document: dict[str, Any], text: str) -> Iterator[Finding]:
    """Yield what is wrong with a ``uv.toml``, or ``[tool.uv]`` of a ``pyproject.toml``."""
    pip = document.get("pip")
    places = [document, pip if isinstance(pip, dict) else {}]
    if any(str(each.get("index-strategy", "")).startswith("unsafe") for each in places):
        yield _extra_index('index-strategy = "first-index"', _line_with(text, "index-strategy"))
    elif any(each.get("extra-index-url") for each in places):
        line = _line_with(text, "extra-index-url")
        yield _extra_index("[[index]] with explicit = true, and [sources] for its packages", line)
    indexes = document.get("index")
    listed = [each for each in indexes if isinstance(each, dict)] if isinstance(indexes, list) else []
    urls = [str(each.get("url", "")) for each in listed] + [str(each.get("index-url", "")) for each in places]
    if any(url.startswith("http://") for url in urls) or document.get("allow-insecure-host"):
        line = _line_with(text, "http://|allow-insecure-host")
        yield insecure_index('url = "https://…" without allow-insecure-host', line)


def _line_with(text: str, pattern: str) -> int:
    """Return the number of the first line that contains a pattern outside of a comment; 0 if none does."""
    lines = enumerate(text.splitlines(), 1)
    return next((n for n, line in lines if re.search(pattern, line) and line.lstrip()[:1] not in "#;"), 0)


def project_findings(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a ``pyproject.toml``; it need not pin versions, as its lock file does."""
    document = toml(text)
    tool = document.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    problems = list(uv_findings(uv, text)) if isinstance(uv, dict) else []
    yield from problems
    yield from project_hook_findings(document, text)
    sources = uv.get("sources") if isinstance(uv, dict) else None
    known = {normal_package(each) for each in sources} if isinstance(sources, dict) else set()
    project = document.get("project")
    listed = project.get("dependencies") if isinstance(project, dict) else None
    names = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    pins = [
        Pin(name, line=line_of_name(text, name), source="its own" if normal_package(name) in known else "")
        for name in map(_name, names[:MAX_NAMES])
    ]
    several = index.several or any(each.rule == "extra-index" for each in problems)
    yield from index.findings(pins, several=several)


def npm_settings_findings(text: str) -> Iterator[Finding]:
    """Yield what is wrong with an ``.npmrc``."""
    for number, line in enumerate(text.splitlines(), 1):
        name, _, value = (each.strip() for each in line.partition("="))
        insecure = name.endswith("registry") and re.match(r"http://(?!localhost|127\.|\[::1\])", value)
        if insecure or (name == "strict-ssl" and value == "false"):
            yield insecure_index("registry=https://… with strict-ssl=true", number)
            return


def _name(requirement: str) -> str:
    end = next(
        (at for at, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None
    )
    return requirement[:end]


def _extra_index(line: str, number: int = 0) -> Finding:
    message = (
        f"{at_line(number)}packages come from several indexes: the highest version of all is installed, so a "
        "public package can replace your own of the same name."
    )
    return Finding(rule="extra-index", severity="high", message=message, fix=f"Write {line}.")


_MAX_FINDINGS = 50
#: Byte order marks and their encodings; UTF-32 first, since its mark begins with the one of UTF-16.
#: Source: pip's ``_decode_req_file``.
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


def _shell(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with shell lines."""
    problems = list(problem_findings(text))
    yield from problems
    built = ((number, line, _FROM_SOURCE.search(line)) for number, line in logical_lines(text))
    if found := next(((number, each[0]) for number, line, each in built if each and installed(line)), None):
        yield build_finding(*found)
    named = [(number, each) for number, line in logical_lines(text) for each in installed(line)]
    several = index.several or any(each.rule == "extra-index" for each in problems)
    yield from index.findings(_requirement_pins(named, ""), several=several)


#: A line that IPython passes to a shell, and a cell of which it passes all lines but the first.
_SHELL_LINE = re.compile(
    r"\s*(?:[\w, ]{1,100}=\s*)?(?:!{1,2}|%(?:sx|system)\s|%(?=\s*(?:uv|pip3?|conda|mamba)\s))"
)
_SHELL_CELL = re.compile(r"\s*%%(?:bash|sh|sx|system|!|script\s+(?:\S*/)?(?:ba|z|da)?sh)\b|\s*%%!")


def cell_findings(source: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with the shell lines of a notebook's cell, by the rules of set-up steps."""
    first, *rest = source.splitlines() or [""]
    if _SHELL_CELL.match(first):
        yield from _shell("\n".join(("", *rest)), index)
        return
    lines: list[str] = []
    for line in (first, *rest):
        begin = _SHELL_LINE.match(line)
        continues = bool(lines) and lines[-1].endswith("\\")
        # Other lines stay as empty lines, for the line numbers.
        lines.append(line[begin.end() :] if begin else line if continues else "")
    yield from _shell("\n".join(lines), index)


def _containerfile(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a Containerfile: images without a digest, and problems in its commands."""
    stages: set[str] = set()
    loose: list[str] = []
    first = 0
    for number, line in logical_lines(text):
        if match := _FROM.match(line):
            image = match[1]
            if image.lower() not in {"scratch", *stages} and "@sha256:" not in image and "$" not in image:
                loose.append(image[:200])
                first = first or number
            stages |= {match[2].lower()} if match[2] else set()
    if loose:
        message = f"Line {first}: images without a digest, which may change: {', '.join(loose[:4])}."
        fix = f"Write FROM {loose[0]}@sha256:DIGEST (podman inspect --format '{{{{.Digest}}}}' {loose[0]})."
        yield Finding(rule="unpinned-image", severity="low", message=message, fix=fix)
    if number := next((number for number, line in logical_lines(text) if _ADD.match(line)), 0):
        message = f"Line {number}: ADD takes a file from the internet without a checksum."
        yield Finding(
            rule="unpinned-download", severity="medium", message=message, fix="Write ADD --checksum=sha256:…."
        )
    yield from _shell("\n".join(_RUN.sub("", line) for line in text.splitlines()), index)


_Kind = Callable[[str, PackageIndex], Iterable[Finding]]
_KINDS: tuple[tuple[re.Pattern[str], _Kind], ...] = (
    (re.compile(r"(.*[-_.])?(requirements|constraints)([-_.].*)?\.(txt|in)"), requirements_findings),
    (re.compile(r"pip\.(conf|ini)"), lambda text, _: pip_findings(text)),
    (re.compile(r"uv\.toml"), lambda text, _: uv_findings(toml(text), text)),
    (re.compile(r"pyproject\.toml"), project_findings),
    (re.compile(r"(uv|poetry)\.lock|pylock(\..+)?\.toml"), lock_findings),
    (re.compile(r"package-lock\.json|npm-shrinkwrap\.json"), npm_lock_findings),
    (re.compile(r"Pipfile\.lock"), pipfile_findings),
    (re.compile(r"yarn\.lock"), yarn_findings),
    (re.compile(r"package\.json"), lambda text, _: package_json_findings(text)),
    (re.compile(r"\.npmrc"), lambda text, _: npm_settings_findings(text)),
    (re.compile(r"setup\.py"), lambda text, _: setup_findings(text)),
    (re.compile(r"((.+\.)?(Containerfile|Dockerfile)|(Containerfile|Dockerfile)\..+)"), _containerfile),
    (re.compile(r".+\.setup"), _shell),
)


def is_dependency_file(path: str) -> bool:
    """Return whether a file lists dependencies, judging by its name."""
    return _kind(path) is not None


def _text(content: bytes) -> str:
    """Return a file as text, decoded as pip does: by its byte order mark, else as UTF-8."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, errors="replace")
    return content.decode(errors="replace")


def dependency_findings(path: str, content: bytes, index: PackageIndex | None = None) -> list[Finding]:
    """Return what is wrong with a file that names dependencies; an empty list for any other file.

    Parameters
    ----------
    index
        Looks packages up by name, and collects what it could not judge; by default one without a mirror.

    Raises
    ------
    ValueError
        The file is broken.
    """
    kind = _kind(path)
    if kind is None:
        return []
    try:
        found = dict.fromkeys(kind(_text(content), index or PackageIndex()))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return [each.model_copy(update={"message": one_line(each.message)}) for each in found][:_MAX_FINDINGS]


def _kind(path: str) -> _Kind | None:
    name = path.rpartition("/")[2]
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)
