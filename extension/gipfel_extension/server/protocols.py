"""Protocols that a page offers: shipped ones, the user's own, and those beside a notebook."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import read_regular
from ..vetting.protocol import VettingProtocol
from ..vetting.protocol_load import SHIPPED, load_protocol, parse_protocol, shipped_protocols
from ..vetting.protocol_search import own_protocols

MOST_BYTES = 256 << 10
_MOST_FILES = 100
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# What makes a YAML file a protocol; many others lie beside a notebook.
_CHECKS = re.compile(rb"^(?:checks|evals)\s*:", re.MULTILINE)
_SOURCE = "The text"
# How a mistake of the file, and a check that can't be run, say where they are.
_LINE = re.compile(rf"(?:{_SOURCE}, line|Line) ([0-9]{{1,7}}):")


def offered_protocols(directory: Path, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every protocol with what it is, those beside the notebook first."""
    folders = (("beside", directory), ("own", own_protocols(environment)))
    found = [(kind, path.name, path) for kind, folder in folders for path in _files(folder)]
    found += [("shipped", name, SHIPPED / f"{name}.yaml") for name in shipped_protocols()]
    return [{"kind": kind, "name": path.stem, "file": file, **_about(path)} for kind, file, path in found]


def path_of(kind: str, file: str, directory: Path, environment: Mapping[str, str]) -> Path:
    """The file of an offered protocol.

    Raises
    ------
    GipfelError
        It is none of those.
    """
    if kind == "shipped" and file in shipped_protocols():
        return SHIPPED / f"{file}.yaml"
    folder = {"beside": directory, "own": own_protocols(environment)}.get(kind)
    if folder is not None:
        for path in _files(folder):
            if path.name == file:
                return path
    raise GipfelError("There is no such protocol any more.", "Choose one of the list.")


def text_of(path: Path) -> str:
    """What a protocol's file holds.

    Raises
    ------
    GipfelError
        It can't be read, or is no text.
    """
    try:
        return read_regular(path, MOST_BYTES, follow=True).decode()
    except OSError as error:
        raise GipfelError(f"{path} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise GipfelError(f"{path} is no text in UTF-8.") from None


def described(text: str) -> dict[str, Any]:
    """What a text means as a protocol: ``valid``, its checks, and what is wrong with it, by line."""
    try:
        protocol = parse_protocol(text, _SOURCE)
    except GipfelError as error:
        return {
            "valid": False,
            "problems": [str(error)],
            "lines": _lines([str(error)]),
            "checks": [],
            "notes": [],
        }
    problems = [each.reason + (f" {each.fix}" if each.fix else "") for each in protocol.problems()]
    checks = [
        {"name": each.name, "type": each.type, "scope": each.scope.value, "severity": each.severity.value}
        for each in protocol.checks
    ]
    return {
        "valid": True,
        "problems": problems,
        "lines": _lines(problems),
        "checks": checks,
        "notes": list(protocol.notes),
    }


def _lines(problems: Sequence[str]) -> list[int]:
    """The line that each problem is about, 0 for none."""
    found = (_LINE.match(each) for each in problems)
    return [int(each[1]) if each else 0 for each in found]


def save_protocol(directory: Path, name: str, text: str, *, replace: bool) -> Path:
    """Write a protocol beside a notebook.

    Raises
    ------
    GipfelError
        The name or the text can't be one, a file of that name is there, or it can't be written.
    """
    stem = re.sub(r"\.ya?ml$", "", name)
    if not _NAME.fullmatch(stem):
        raise GipfelError("This can't name a protocol.", "Use letters, digits, dots, dashes and underscores.")
    parse_protocol(text, _SOURCE)
    path = directory / f"{stem}.yaml"
    if path.exists() and not replace:
        raise GipfelError(f"{path.name} is there already.", "Take another name, or replace it.")
    try:
        write_atomically(path, text)
    except OSError as error:
        raise GipfelError(f"{path} can't be written: {error.strerror}.") from error
    return path


def _files(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"})
    except OSError:
        return
    for path in paths[:_MOST_FILES]:
        try:
            if _CHECKS.search(read_regular(path, MOST_BYTES, follow=True)):
                yield path
        except OSError:
            continue


def _about(path: Path) -> dict[str, Any]:
    try:
        protocol: VettingProtocol = load_protocol(path)
    except GipfelError as error:
        return {"description": "", "problem": str(error)}
    return {"description": protocol.description, "problem": ""}
