"""Notebooks: commands in cells, code in outputs, and secrets in both."""

import re
from collections.abc import Iterator
from typing import Any

from ..model import Finding, Severity, Verdict
from ..secret_texts import holds_secret
from .judgement import Judgement

_RULES: tuple[tuple[str, Severity, str, str, str], ...] = (
    (
        "pipe-to-shell",
        "high",
        r"(curl|wget)\b[^\n|]{0,500}\|\s*(sudo\s+)?(ba|z|da)?sh\b",
        "A cell runs what it downloads.",
        "Download the file, check its hash, then run it.",
    ),
    (
        "extra-index",
        "high",
        r"--extra-index-url|--trusted-host|UV_INDEX_STRATEGY=unsafe|--index-strategy[ =]unsafe",
        "A cell installs from an additional index, whose packages can replace those of the same name.",
        "Use one index (--index-url) or --require-hashes.",
    ),
    (
        "unpinned-install",
        "low",
        r"^\s*[!%]\s*(?:python3? -m |uv )?(?:pip3?|conda|mamba) install(?![^\n]*(==|-r |-e \.|--require))",
        "A cell installs packages without versions.",
        "Pin the versions: pip install 'NAME==VERSION'.",
    ),
    (
        "remote-code",
        "high",
        r"trust_remote_code\s*=\s*True(?![^\n]*revision\s*=\s*['\"][0-9a-f]{40})",
        "A cell runs a model's own Python files, of any revision.",
        "Pin revision= to a commit of 40 digits, or leave out trust_remote_code.",
    ),
    (
        "unpickle",
        "medium",
        r"\b(?:c?[pP]ickle|dill|joblib|cloudpickle)\.loads?\(|weights_only\s*=\s*False|allow_pickle\s*=\s*True",
        "A cell loads pickled objects, which run code.",
        "Scan the file with gipfel scan first; prefer safetensors or weights_only=True.",
    ),
)
_COMPILED = [
    (rule, severity, re.compile(pattern, re.MULTILINE), message, fix)
    for rule, severity, pattern, message, fix in _RULES
]
_SCRIPTS = ("application/javascript", "text/html", "image/svg+xml")
_SCRIPT = re.compile(r"<script|\bon(?:error|load|click)\s*=|javascript:", re.IGNORECASE)
_MAX_TEXT_BYTES = 4 << 20


def scan_notebook(document: dict[str, Any]) -> Judgement:
    """Judge a notebook: its cells run only if the reader runs them, so each problem is a separate finding."""
    found: dict[str, tuple[Verdict, Finding]] = {}
    for number, cell in enumerate(document["cells"], 1):
        if isinstance(cell, dict):
            for verdict, finding in _of_cell(cell, number):
                found.setdefault(finding.rule, (verdict, finding))
    return Judgement.of(found.values())


def _of_cell(cell: dict[str, Any], number: int) -> Iterator[tuple[Verdict, Finding]]:
    source = _text(cell.get("source"))
    place = f"cell {number}"
    if cell.get("cell_type") == "code":
        for rule, severity, pattern, message, fix in _COMPILED:
            if pattern.search(source):
                finding = Finding(rule=rule, severity=severity, message=f"{place}: {message}", fix=fix)
                yield ("plain" if severity == "low" else "needs code"), finding
    outputs = cell.get("outputs")
    texts = [source]
    for output in outputs if isinstance(outputs, list) else ():
        data = output.get("data") if isinstance(output, dict) else None
        for kind, value in data.items() if isinstance(data, dict) else ():
            text = _text(value)
            texts.append(text)
            if kind in _SCRIPTS and (kind == _SCRIPTS[0] or _SCRIPT.search(text)):
                yield "needs code", _script(place)
        texts.append(_text(output.get("text")) if isinstance(output, dict) else "")
    if any(holds_secret(text) for text in texts):
        message = f"{place}: it holds a token or a private key."
        fix = "Revoke the token, clear the outputs, and read it from a variable."
        yield "plain", Finding(rule="secret", severity="high", message=message, fix=fix)


def _script(place: str) -> Finding:
    return Finding(
        rule="output-script",
        severity="medium",
        message=f"{place}: an output holds a script, which runs in the browser once it is trusted.",
        fix="Clear the outputs, or open the notebook untrusted.",
    )


def _text(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    return "".join(part for part in parts if isinstance(part, str))[:_MAX_TEXT_BYTES]
