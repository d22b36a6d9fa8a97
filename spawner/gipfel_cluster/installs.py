"""Find commands and variables that let others choose what is installed or run.

`command_problems` checks shell lines, such as set-up steps and the RUN lines of a Containerfile.
`variable_problem` checks one environment variable.
"""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

_MAX_LINE = 8_000
_MAX_LINES = 20_000
_DOWNLOAD = r"\b(?:curl|wget)\b"
_SHELL = r"(?:sudo\s+)?(?:[\w./-]{0,60}/)?(?:ba|z|da|k)?sh\b|(?:sudo\s+)?python[0-9.]*\b"
_PIPED = re.compile(
    rf"{_DOWNLOAD}[^|;&]{{0,2000}}\|\s*(?:{_SHELL})|(?:{_SHELL})\s+(?:-c\s+)?[\"']?(?:<|\$)\(\s*{_DOWNLOAD}"
)
_EXTRA_INDEX = re.compile(
    r"--extra-index-url\b|\b(?:PIP|UV)_EXTRA_INDEX_URL=|--index-strategy[ =]unsafe|UV_INDEX_STRATEGY=.?unsafe"
)
_INSECURE_INDEX = re.compile(
    r"--trusted-host\b|\bPIP_TRUSTED_HOST=|(?:--(?:extra-)?index-url[ =]|_INDEX_URL=|-i )[\"']?"
    r"http://(?!(?:localhost|127\.|\[::1\]))"
)
_INSTALL = re.compile(
    r"\b(?:pip[0-9.]*|uv\s+pip)\s+install\b([^;&|]*)|\buv\s+(?:add|tool\s+install)\b([^;&|]*)"
)
#: Options of pip and uv that take the next word as their value.
_WITH_VALUE = frozenset(
    [
        "-r",
        "--requirement",
        "--requirements",
        "-c",
        "--constraint",
        "--constraints",
        "-i",
        "--index-url",
        "--extra-index-url",
        "-f",
        "--find-links",
        "-t",
        "--target",
        "--prefix",
        "--root",
        "--trusted-host",
        "--platform",
        "--python-version",
        "--python",
        "--cache-dir",
        "--index-strategy",
        "--index",
        "--progress-bar",
        "--upgrade-strategy",
        "--no-binary",
        "--only-binary",
        "--timeout",
        "--retries",
        "--src",
        "--log",
        "--proxy",
        "--cert",
        "-e",
        "--editable",
        "--no-build-isolation-package",
        "--torch-backend",
        "--report",
        "--config-settings",
        "-C",
        "--abi",
    ]
)
_FILES = ("-r", "--requirement", "--requirements", "-c", "--constraint", "--constraints")
#: A line with one of these options is not reported as unpinned: the file that it names, which is not read
#: here, may fix the versions.
_PINS = (*_FILES, "--require-hashes")
_COMMIT = re.compile(r"@[0-9a-f]{40}(?:$|[#&])")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class InstallProblem(NamedTuple):
    """A problem of a line.

    ``code`` identifies the kind of problem, ``line`` is counted from 1 (0 for a variable). ``reason`` and
    ``consequence`` are clauses without a full stop, ``fix`` is a sentence.
    """

    code: str
    line: int
    reason: str
    consequence: str
    fix: str


def command_problems(text: str) -> Iterator[InstallProblem]:
    """Yield the problems in shell lines; each kind once, at the first line that has it."""
    seen: set[str] = set()
    for number, line in logical_lines(text):
        for problem in _of_line(line, number):
            if problem.code not in seen:
                seen.add(problem.code)
                yield problem


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each command line and the number of its first line; join continued lines, and remove comments."""
    start, held = 1, ""
    for number, raw in enumerate(text.splitlines()[:_MAX_LINES], 1):
        line = "" if raw.lstrip().startswith("#") else re.sub(r"\s#.*", "", raw)[:_MAX_LINE]
        start = number if not held else start
        if line.endswith("\\") and len(held) < _MAX_LINE:
            # Without a space, as shells and pip join them.
            held += line[:-1]
            continue
        yield start, held + line
        held = ""
    if held:
        yield start, held


def _of_line(line: str, number: int) -> Iterator[InstallProblem]:
    if ("curl" in line or "wget" in line) and _PIPED.search(line):
        yield InstallProblem(
            "piped-script",
            number,
            "a downloaded script is run at once",
            "an attacker who controls the server or the network can run programs as you",
            "Write curl -fsSLo script.sh URL && echo 'SHA256  script.sh' | sha256sum -c && sh script.sh.",
        )
    if _EXTRA_INDEX.search(line) and "--require-hashes" not in line:
        yield _extra_index(number)
    if _INSECURE_INDEX.search(line):
        yield _insecure_index(number)
    if loose := unpinned(line):
        names = ", ".join(loose[:4])
        yield InstallProblem(
            "unpinned-install",
            number,
            f"{names} {'is' if len(loose) == 1 else 'are'} installed without a version",
            "each start may install other code",
            f"Write pip install {' '.join(repr(f'{each}==VERSION') for each in loose[:4])}, or use hashes.",
        )


def _extra_index(line: int) -> InstallProblem:
    return InstallProblem(
        "extra-index",
        line,
        "packages come from several indexes",
        "pip takes the highest version of all, so a public package can replace yours of the same name",
        "Write one index, --index-url URL, or pin with --require-hashes -r requirements.txt.",
    )


def _insecure_index(line: int) -> InstallProblem:
    return InstallProblem(
        "insecure-index",
        line,
        "the index is not authenticated",
        "an attacker in the network can choose what is installed",
        "Write --index-url https://…, and leave out --trusted-host.",
    )


def installed(line: str) -> list[str]:
    """Return the requirements that pip or uv would install, such as ``torch==2.4`` or ``numpy``."""
    found: list[str] = []
    for match in _INSTALL.finditer(line):
        found += _requirements(match[1] or match[2] or "")
    return found


def named_paths(line: str) -> Iterator[tuple[str, bool]]:
    """Yield each local path from which pip or uv would install, and whether it is a requirements file.

    If not, it is a project directory, whose ``setup.py`` or build backend runs code.
    """
    for match in _INSTALL.finditer(line):
        parts = _words(match[1] or match[2] or "")
        for before, part, value in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
            option, _, joined = part.partition("=")
            if before in _WITH_VALUE:
                continue
            if option in _FILES:
                yield joined or value, True
            elif part[:2] in ("-r", "-c") and not part.startswith("--"):
                yield part[2:], True
            elif option in ("-e", "--editable"):
                yield joined or value, False
            elif part.startswith((".", "/", "~", "$")) and not part.endswith((".whl", ".gz", ".zip")):
                yield part.partition("[")[0], False


def unpinned(line: str) -> list[str]:
    """Return the names of the packages that a line installs without fixing the version."""
    loose: list[str] = []
    for match in _INSTALL.finditer(line):
        words = match[1] or match[2] or ""
        if any(f" {pin}" in f" {words}" for pin in _PINS):
            continue
        loose += [each for each in _requirements(words) if not _is_pinned(each)]
    return [name[0] for each in loose if (name := _NAME.match(each.removeprefix("git+https://")))]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _requirements(words: str) -> list[str]:
    found, skip = [], False
    for part in _words(words):
        if skip or part.startswith("-"):
            skip = not skip and part in _WITH_VALUE
        elif not part.startswith((".", "/", "$", "~", "<", ">", "2>")) and not part.endswith((".whl", ".gz")):
            found.append(part)
    return found


def _is_pinned(requirement: str) -> bool:
    if requirement.startswith(("git+", "hg+")):
        return _COMMIT.search(requirement) is not None
    return "==" in requirement or " @ " in requirement or "://" in requirement or "$" in requirement


def variable_problem(name: str, value: str) -> InstallProblem | None:
    """Return what is wrong with a variable that pip, uv or torch reads; None if nothing is."""
    if not value:
        return None
    if name in ("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL") or (
        name == "UV_INDEX_STRATEGY" and value.startswith("unsafe")
    ):
        return _extra_index(0)._replace(
            fix="Write PIP_INDEX_URL with one index that has all packages, and remove this."
        )
    if name == "PIP_TRUSTED_HOST" or (
        name.endswith("_INDEX_URL") and _INSECURE_INDEX.search(f"{name}={value}")
    ):
        return _insecure_index(0)._replace(fix="Write an index that begins with https://, and remove this.")
    if name == "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" and value.lower() in ("1", "y", "yes", "true"):
        return InstallProblem(
            "unsafe-load",
            0,
            "torch.load runs the code in every checkpoint",
            "a checkpoint from someone else can run programs as you",
            "Remove it, and pass weights_only=False where you trust the file.",
        )
    return None
