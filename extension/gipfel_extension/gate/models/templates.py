"""Chat templates: Jinja texts in models, which some programs run without a sandbox."""

import re
from collections.abc import Iterator

from ..model import Finding, Verdict

_BLOCK_START = re.compile(r"\{[{%]")
#: Quoted texts, which may hold the end of a block, and that end.
_TOKENS = re.compile(r"'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?|[%}]\}", re.DOTALL)
#: Ways to reach Python's internals from a template: a private attribute, by name, by text, by a filter.
_ESCAPES = re.compile(
    r"\.\s*_\w|\[[^\]]{0,200}['\"]_|\|\s*attr\b|\|\s*map\s*\([^)]{0,200}['\"]_|__\w+__|\\x5f|\\137|\\u005f",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
#: Brackets without others inside; the first group is the end of a value whose subscript they are.
_BRACKETS = re.compile(r"(\w+\s*|[\])'\"]\s*)?\[([^\[\]]*)\]")
_BEFORE_LIST = frozenset(("in", "if", "elif", "else", "or", "and", "not", "is"))
#: Operators and filters that put a text together; a count or an index needs none of them.
_COMPUTES = re.compile(
    r"~|%|['\"]\s*[+*]|[+*]\s*['\"]|\|\s*(?!length\b|count\b|int\b)\w+|\.\s*(?:format|join|replace|lower|upper)\b"
)
_BY_ATTRIBUTE = re.compile(
    r"\|\s*(?:map|selectattr|rejectattr|sort|groupby|sum|min|max|unique)\s*\(([^()]*)\)"
)
_ASSIGNED = re.compile(r"\b(?:set|for)\s+(\w+)\s*(?:=|in\b)(.*)", re.DOTALL)
_UNDERSCORES = re.compile(r"['\"]_+['\"]")
_MAX_ROUNDS = 20


def template_findings(text: str, place: str) -> list[tuple[Verdict, Finding]]:
    """Return what is wrong with a template."""
    for block in _blocks(text):
        if found := _ESCAPES.search(block):
            message = f"The chat template in {place} reaches into Python's internals: {found[0]!r}."
            return [
                (
                    "malicious",
                    Finding(
                        rule="template-injection",
                        severity="critical",
                        message=message,
                        fix="Don't use this model; report it to its publisher.",
                    ),
                )
            ]
    if found_text := _computed(text):
        message = f"The chat template in {place} computes the name of what it reads: {found_text[:80]!r}."
        fix = "Read the template, or use it only in a program that renders it in a sandbox."
        finding = Finding(rule="template-computed-name", severity="medium", message=message, fix=fix)
        return [("not understood", finding)]
    return []


def _blocks(text: str) -> Iterator[str]:
    """Yield the blocks of a template, with quoted texts that hold the end of a block, and without."""
    for begin, end in (("{{", "}}"), ("{%", "%}")):
        stop = 0
        while (first := text.find(begin, stop)) >= 0 and (last := text.find(end, first + 2)) >= 0:
            stop = last + 2
            yield text[first:stop]
    at = 0
    while start := _BLOCK_START.search(text, at):
        ends = (each.end() for each in _TOKENS.finditer(text, start.end()) if each[0] in ("%}", "}}"))
        at = next(ends, len(text))
        yield text[start.start() : at]


def _computed(text: str) -> str:
    """Return a subscript whose text the template puts together, which may reach Python's internals."""
    blocks = [block[2:-2] for block in _blocks(text)]
    computed = {
        found[1] for block in blocks for found in _ASSIGNED.finditer(block) if _COMPUTES.search(found[2])
    }
    for block in blocks:
        if found_text := _UNDERSCORES.search(block):
            return found_text[0]
        # Quoted texts may hold brackets; of them only the quotes matter here.
        bare = _QUOTED.sub("''", block)
        for part in (*_subscripts(bare), *_BY_ATTRIBUTE.findall(bare)):
            if _COMPUTES.search(part) or part.strip() in computed:
                return str(part.strip())
    return ""


def _subscripts(block: str) -> Iterator[str]:
    """Yield what stands in brackets behind a value, the inner ones first; lists leave their content."""
    for _ in range(_MAX_ROUNDS):
        found = list(_BRACKETS.finditer(block))
        if not found:
            return
        yield from (each[2] for each in found if each[1] and each[1].strip() not in _BEFORE_LIST)
        block = _BRACKETS.sub(_replace_brackets, block)
    yield "~"


def _replace_brackets(match: re.Match[str]) -> str:
    before = match[1] or ""
    return before if before and before.strip() not in _BEFORE_LIST else f"{before}({match[2]})"
