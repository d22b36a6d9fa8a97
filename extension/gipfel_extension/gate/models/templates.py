"""Chat templates: Jinja texts in models, which some programs run without a sandbox."""

import re

from ..model import Finding, Verdict

_BLOCKS = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
#: Ways to reach Python's internals from a template: a private attribute, by name, by text, by a filter.
_ESCAPES = re.compile(
    r"\.\s*_\w|\[[^\]]{0,200}['\"]_|\|\s*attr\b|\|\s*map\s*\([^)]{0,200}['\"]_|__\w+__|\\x5f|\\137|\\u005f",
    re.IGNORECASE,
)


def template_findings(text: str, place: str) -> list[tuple[Verdict, Finding]]:
    """Return what is wrong with a template."""
    for block in _BLOCKS.finditer(text):
        if found := _ESCAPES.search(block[0]):
            message = f"The chat template in {place} reaches into Python's internals: {found[0]!r}."
            return [
                (
                    "malicious",
                    Finding(
                        rule="template-injection",
                        severity="critical",
                        message=message,
                        fix="Don't use this model; tell whoever provides it.",
                    ),
                )
            ]
    return []
