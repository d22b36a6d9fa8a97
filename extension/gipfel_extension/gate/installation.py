"""Judge lock files, and find code that runs while a package is installed, before any of it is imported.

pip runs ``setup.py`` or a build backend for every package without a wheel; npm runs a package's install
scripts. Nothing is run or imported here: ``setup.py`` is parsed, and its suspicious calls are reported. The
functions for lock files of uv, poetry, pip and npm come last.
"""

import ast
import json
import re
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gipfel_cluster.installs import command_problems
from gipfel_cluster.model import pluralize

from .model import Finding, Severity
from .package_index import PYPI, PackageIndex, Pin

RULE = "install-hook"
WHEELS_ONLY = (
    "Write pip install --only-binary :all: NAME==VERSION, or build its wheel once without a network, and "
    "install that."
)
NO_SCRIPTS = (
    "Write ignore-scripts=true into .npmrc, and run npm rebuild NAME for those that need it after reading it."
)
_SHOWN = 4
_MOST_NODES = 500_000
_PROGRAMS = frozenset(
    ("os.system", "os.popen", "os.execv", "os.execvp", "os.spawnl", "os.spawnv", "pty.spawn")
)
_NETWORK = frozenset(
    (
        *("urllib.request.urlopen", "urllib.request.urlretrieve", "urlopen", "urlretrieve", "socket.socket"),
        *("socket.create_connection", "http.client.HTTPConnection", "http.client.HTTPSConnection"),
    )
)
_NETWORK_MODULES = ("requests.", "httpx.", "urllib3.", "aiohttp.")
_DECODERS = frozenset(
    (
        *("b64decode", "b32decode", "b16decode", "b85decode", "a85decode", "unhexlify", "fromhex"),
        *("decompress", "loads", "decrypt"),
    )
)
_NPM_HOOKS = ("preinstall", "install", "postinstall")
_DOWNLOADS = re.compile(r"\b(curl|wget|fetch|https?://|base64|atob|node\s+-e|eval)\b", re.IGNORECASE)


def setup_findings(text: str) -> Iterator[Finding]:
    """Yield what a ``setup.py`` does beyond describing its package; nothing for one that only calls setup."""
    try:
        with warnings.catch_warnings():
            # Don't print Python's warnings about invalid escapes in the scanned file.
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        message = "This setup.py runs at installation, and is not valid in this version of Python."
        yield Finding(rule=RULE, severity="low", message=message, fix=WHEELS_ONLY)
        return
    found: dict[Severity, dict[str, int]] = {}
    names = _imported(tree)
    for count, node in enumerate(ast.walk(tree)):
        if count > _MOST_NODES:
            found.setdefault("low", {})["more code than is read"] = 1
            break
        if isinstance(node, ast.Call) and (call := _judged_call(node, names)):
            severity, words = call
            found.setdefault(severity, {}).setdefault(words, node.lineno)
    for severity, calls in sorted(found.items(), key=lambda each: ("high", "medium", "low").index(each[0])):
        listed = ", ".join(f"{words} (line {line})" for words, line in list(calls.items())[:_SHOWN])
        message = f"Line {min(calls.values())}: this setup.py acts at installation: {listed}."
        yield Finding(rule=RULE, severity=severity, message=message, fix=WHEELS_ONLY)


def _imported(tree: ast.AST) -> dict[str, str]:
    """Return the full name behind each name that a file imports."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def _judged_call(node: ast.Call, names: Mapping[str, str]) -> tuple[Severity, str] | None:
    """Return the severity and the name of a suspicious call; None for a harmless one."""
    name = _dotted(node.func, names)
    if name in ("exec", "eval") and any(_decodes(each, names) for each in node.args):
        return "high", f"{name} of text that it decodes or downloads"
    if _is_network(name):
        return "medium", name
    if name in _PROGRAMS or name.startswith("subprocess."):
        if any(_piped(each) for each in (*node.args, *(each.value for each in node.keywords))):
            return "high", f"{name} of a downloaded script"
        return "low", name
    if name.rpartition(".")[2] == "setup" and any(each.arg == "cmdclass" for each in node.keywords):
        return "low", "setup(cmdclass=…)"
    return None


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def _is_network(name: str) -> bool:
    return name in _NETWORK or name.startswith(_NETWORK_MODULES)


def _decodes(argument: ast.expr, names: Mapping[str, str]) -> bool:
    for node in ast.walk(argument):
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else _dotted(node.func, names)
            if last.rpartition(".")[2] in _DECODERS or _is_network(_dotted(node.func, names)):
                return True
    return False


def _piped(argument: ast.expr) -> bool:
    texts = (each.value for each in ast.walk(argument) if isinstance(each, ast.Constant))
    return any(isinstance(each, str) and any(_piped_scripts(each)) for each in texts)


def _piped_scripts(text: str) -> Iterator[str]:
    return (each.code for each in command_problems(text) if each.code == "piped-script")


#: Keys below ``[tool]`` with which a project names a file of its own that runs during the build.
_BUILD_SCRIPTS = (
    ("hatch.build.hooks.custom", ("hatch", "build", "hooks", "custom")),
    ("hatch.build.targets.wheel.hooks.custom", ("hatch", "build", "targets", "wheel", "hooks", "custom")),
    ("hatch.build.targets.sdist.hooks.custom", ("hatch", "build", "targets", "sdist", "hooks", "custom")),
    ("poetry.build", ("poetry", "build")),
    ("pdm.build.custom-hook", ("pdm", "build", "custom-hook")),
    ("setuptools.cmdclass", ("setuptools", "cmdclass")),
)


def project_hook_findings(document: Mapping[str, Any], text: str) -> Iterator[Finding]:
    """Yield the settings of a ``pyproject.toml`` that run files from its own directory during the build."""
    system = document.get("build-system")
    if isinstance(system, dict) and system.get("backend-path"):
        message = (
            f"{line_of(text, 'backend-path')}the build backend {str(system.get('build-backend'))[:80]} is in "
            f"this directory ({str(system['backend-path'])[:80]}), and runs at installation."
        )
        yield Finding(rule=RULE, severity="low", message=message, fix=WHEELS_ONLY)
    for name, keys in _BUILD_SCRIPTS:
        value: Any = document.get("tool")
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            message = f"{line_of(text, name)}[tool.{name}] names a file that runs at installation."
            yield Finding(rule=RULE, severity="low", message=message, fix=WHEELS_ONLY)


def line_of(text: str, word: str) -> str:
    """Return ``Line N: `` for the first line that contains a word; empty if none does."""
    at = text.find(word)
    return f"Line {text.count(chr(10), 0, at) + 1}: " if at >= 0 else ""


def package_json_findings(text: str) -> Iterator[Finding]:
    """Yield the install scripts of a ``package.json``.

    Raises
    ------
    ValueError
        It is broken.
    """
    document = json.loads(text)
    found = document.get("scripts") if isinstance(document, dict) else None
    scripts = found if isinstance(found, dict) else {}
    for name in _NPM_HOOKS:
        command = scripts.get(name)
        if not isinstance(command, str):
            continue
        severity: Severity = "low"
        if any(_piped_scripts(command)):
            severity = "high"
        elif _DOWNLOADS.search(command):
            severity = "medium"
        message = f"{line_of(text, f'{chr(34)}{name}{chr(34)}')}npm runs at installation: {command[:200]}."
        yield Finding(rule=RULE, severity=severity, message=message, fix=NO_SCRIPTS)


#: Largest number of packages in one file that are checked.
MAX_NAMES = 20_000
_NAME_LINE = re.compile(r"name\s*=\s*[\"']([^\"']+)[\"']")


def lock_findings(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a ``uv.lock``, a ``poetry.lock`` or a ``pylock.toml``."""
    document = toml(text)
    packages = document.get("package") or document.get("packages")
    listed = [each for each in packages if isinstance(each, dict)] if isinstance(packages, list) else []
    listed = listed[:MAX_NAMES]
    lines = lines_of_names(text, _NAME_LINE)
    yield from index.findings(
        Pin(name, _text_of(each, "version"), lines.get(name, 0), _source(each))
        for each in listed
        if (name := _text_of(each, "name"))
    )
    unhashed = [
        _text_of(each, "name")[:60] for each in listed if _has_files(each) and "hash" not in repr(each)
    ]
    if unhashed:
        yield without_hashes(unhashed, lines.get(unhashed[0], 0), "uv lock")
    http = [_text_of(each, "name")[:60] for each in listed if "'http://" in repr(each)]
    if http:
        yield insecure_index(f"https:// for {listed_names(http)}", lines.get(http[0], 0))
    sources = [_text_of(each, "name") for each in listed if _is_source_only(each)]
    yield from source_only_findings(sources, text)


def without_hashes(names: Sequence[str], line: int, command: str) -> Finding:
    """Return the finding on locked packages without hashes; ``command`` locks them again."""
    message = f"Line {line}: locked without hashes: {listed_names(names)}."
    return Finding(rule="no-hashes", severity="medium", message=message, fix=f"Lock again: {command}.")


def listed_names(names: Sequence[str]) -> str:
    """Return the first names of a list, each cut to 80 characters, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(each[:80] for each in names[:_SHOWN]) + more


def lines_of_names(text: str, pattern: re.Pattern[str]) -> dict[str, int]:
    """Return the first line of each name that a pattern finds at the beginning of a line."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := pattern.match(line):
            found.setdefault(match[1], number)
    return found


def _text_of(package: Mapping[str, Any], key: str) -> str:
    value = package.get(key)
    return value if isinstance(value, str) else ""


def _source(package: Mapping[str, Any]) -> str:
    """Return the URL of a locked package's index or file, or its path if it is local."""
    source = package.get("source")
    if isinstance(source, dict):
        return str(source.get("registry") or source.get("url") or "its own")
    files = [package.get("sdist"), package.get("archive"), *_list_of(package.get("wheels"))]
    urls = [str(each["url"]) for each in files if isinstance(each, dict) and "url" in each]
    # poetry.lock names no source for packages from PyPI.
    return str(package.get("index") or (urls[0] if urls else PYPI if "files" in package else ""))


def _is_source_only(package: Mapping[str, Any]) -> bool:
    files = [str(each.get("file", "")) for each in _list_of(package.get("files")) if isinstance(each, dict)]
    if files:
        return not any(each.endswith(".whl") for each in files)
    return bool(package.get("sdist")) and not package.get("wheels")


def _list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def npm_lock_findings(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a ``package-lock.json``.

    Raises
    ------
    ValueError
        It is broken.
    """
    document = json.loads(text)
    entries = document.get("packages") if isinstance(document, dict) else None
    unhashed, http, pins = [], [], []
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        resolved = entry.get("resolved") if isinstance(entry, dict) else None
        if isinstance(resolved, str) and resolved.startswith("http"):
            unhashed += [name] if not entry.get("integrity") else []
            http += [name] if resolved.startswith("http://") else []
            short = name.rpartition("node_modules/")[2]
            pins.append(Pin(short, _text_of(entry, "version"), line_of_name(text, name), resolved, "npm"))
    yield from index.findings(pins)
    if isinstance(entries, dict):
        yield from npm_script_findings(entries.items(), text)
    if unhashed:
        yield without_hashes(unhashed, line_of_name(text, unhashed[0]), "npm install")
    if http:
        yield insecure_index(f"https:// for {listed_names(http)}", line_of_name(text, http[0]))


def npm_script_findings(entries: Iterable[tuple[str, Any]], text: str) -> Iterator[Finding]:
    """Yield the packages of a ``package-lock.json`` that have install scripts, as one finding."""
    names = [
        name.rpartition("node_modules/")[2]
        for name, entry in entries
        if name and isinstance(entry, dict) and entry.get("hasInstallScript") is True
    ]
    if names:
        message = (
            f"{line_of(text, 'hasInstallScript')}{pluralize(len(names), 'package')} run a script at "
            f"installation: {listed_names(names)}."
        )
        yield Finding(rule=RULE, severity="low", message=message, fix=NO_SCRIPTS)


def source_only_findings(names: list[str], text: str) -> Iterator[Finding]:
    """Yield a finding if packages are locked only as source, since installing them runs their build."""
    if names:
        message = (
            f"{line_of(text, f'{chr(34)}{names[0]}{chr(34)}')}locked as source alone, so that its build runs "
            f"at installation: {listed_names(names)}."
        )
        yield Finding(rule=RULE, severity="low", message=message, fix=WHEELS_ONLY)


def _has_files(package: dict[str, Any]) -> bool:
    source = package.get("source")
    if isinstance(source, dict) and not ("registry" in source or "url" in source):
        return False
    return any(key in package for key in ("files", "wheels", "sdist", "archive"))


def toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML file.

    Raises
    ------
    ValueError
        It is broken.
    """
    return tomllib.loads(text)


def line_of_name(text: str, name: str) -> int:
    """Return the number of the line with a quoted name; 0 if there is none."""
    found = re.search(rf"[\"']{re.escape(name)}(?![A-Za-z0-9._-])", text) if name else None
    return text.count("\n", 0, found.start()) + 1 if found else 0


def insecure_index(line: str, number: int = 0) -> Finding:
    """Return the finding for an index without authentication (http), with the line to write instead."""
    message = (
        f"{at_line(number)}an index is not authenticated: an attacker in the network can choose what is "
        "installed."
    )
    return Finding(rule="insecure-index", severity="high", message=message, fix=f"Write {line}.")


def at_line(number: int) -> str:
    """Return the beginning of a message that refers to a line; empty for line 0 (unknown)."""
    return f"Line {number}: " if number else ""
