"""Judge JSON files of models (remote code, layers with code, foreign classes, templates) and notebooks.

Chat templates are Jinja templates, which some programs render without a sandbox. In notebooks, commands in
cells, code in outputs, and secrets in both are found. The functions at the end find secrets in any file.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from ..dependencies import cell_findings
from ..model import Finding, Judgement, Severity, Verdict
from ..package_index import PackageIndex
from .pickle_values import is_dangerous
from .streams import NotUnderstoodError

_MAX_BYTES = 64 << 20
_MAX_TEMPLATE_BYTES = 4 << 20
_MAX_VALUES = 2_000_000
_KERAS_ROOTS = ("keras", "tensorflow", "tf_keras", "keras_nlp", "keras_hub", "keras_cv")
_LAMBDA = re.compile(rb'"class_name"\s*:\s*"(Lambda|TFOpLambda|__lambda__)"')
_MODULE = re.compile(rb'"module"\s*:\s*"([^"\\\0]{1,200})"')
#: An escape of a printable ASCII character. JSON needs none, and no program writes them, so one hides a name.
_HIDDEN = re.compile(rb"\\u00(?!7[fF])[2-7][0-9a-fA-F]")
_OVERLAP = 4096
_CHUNK = 1 << 20

Found = Iterator[tuple[Verdict, Finding]]


def scan_json(file: BinaryIO, index: PackageIndex) -> Judgement:
    """Judge a JSON file: a configuration of transformers or Keras, a notebook; `index` looks packages up."""
    content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise NotUnderstoodError(f"it is a JSON file of more than {_MAX_BYTES >> 20} MiB")
    if sum(content.count(each) for each in (b",", b"[", b"{")) > _MAX_VALUES:
        raise NotUnderstoodError("it holds too many values")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NotUnderstoodError("its JSON is broken") from error
    if isinstance(document, dict) and isinstance(document.get("cells"), list) and "nbformat" in document:
        return scan_notebook(document, index)
    return Judgement.of(_walk(document))


def _walk(document: Any) -> Found:
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += value.values()
            yield from _remote_code(value)
            yield from _keras(value)
            yield from _templates(value)


def _remote_code(value: dict[str, Any]) -> Found:
    if isinstance(value.get("auto_map"), dict) and value["auto_map"]:
        names = ", ".join(str(each)[:80] for each in list(value["auto_map"].values())[:6])
        yield (
            "needs code",
            Finding(
                rule="remote-code",
                severity="high",
                message=f"With trust_remote_code=True, loading it runs its own Python files: {names}.",
                fix="Read those files, pin revision= to a commit of 40 digits, or use another model.",
            ),
        )


def _keras(value: dict[str, Any]) -> Found:
    name, module = value.get("class_name"), value.get("module")
    if not isinstance(name, str):
        return
    if name in ("Lambda", "TFOpLambda", "__lambda__"):
        yield _code_layer()
    if isinstance(module, str) and module not in ("builtins", ""):
        # Keras resolves a registered function by "module", which may be any module that Python can import.
        if is_dangerous(module, name):
            message, verdict = f"Loading it calls {module[:80]}.{name[:80]}.", "malicious"
        elif module.partition(".")[0] not in _KERAS_ROOTS:
            message, verdict = f"Loading it imports {module[:80]}.{name[:80]}.", "needs code"
        else:
            return
        severity = "critical" if verdict == "malicious" else "high"
        fix = "Load it with safe_mode=True and a current Keras, or ask for the weights alone."
        yield (
            "malicious" if verdict == "malicious" else "needs code",
            Finding(
                rule="keras-module",
                severity="critical" if severity == "critical" else "high",
                message=message,
                fix=fix,
            ),
        )
    elif module == "builtins" and is_dangerous("builtins", str(value.get("config"))):
        message = f"Loading it calls builtins.{str(value.get('config'))[:80]}."
        yield (
            "malicious",
            Finding(rule="keras-module", severity="critical", message=message, fix="Don't load it."),
        )


def _code_layer() -> tuple[Verdict, Finding]:
    finding = Finding(
        rule="keras-lambda",
        severity="high",
        message="A Lambda layer in it holds Python code, which runs when the model is loaded.",
        fix="Load it with safe_mode=True, or ask for the weights alone.",
    )
    return "needs code", finding


def _templates(value: dict[str, Any]) -> Found:
    for key in ("chat_template", "default_chat_template", "template"):
        text = value.get(key)
        if isinstance(text, str):
            yield from template_findings(text, key)


def scan_hdf5(file: BinaryIO) -> Judgement:
    """Judge an HDF5 file by the Keras configuration that it may contain as one JSON text."""
    before = b""
    parts: dict[Judgement, None] = {}
    while content := file.read(_CHUNK):
        before += content
        if _LAMBDA.search(before):
            parts.setdefault(Judgement.of([_code_layer()]))
        if _HIDDEN.search(before):
            parts.setdefault(Judgement.unclear("it hides letters of its configuration in escapes"))
        for module in dict.fromkeys(_MODULE.findall(before)):
            parts.setdefault(
                Judgement.of(_keras({"module": module.decode(errors="replace"), "class_name": "*"}))
            )
        before = content[-_OVERLAP:]
    return Judgement.union(parts)


def scan_template(file: BinaryIO, name: str) -> Judgement:
    """Judge a Jinja file, in which some models store their chat template."""
    content = file.read(_MAX_TEMPLATE_BYTES + 1)
    if len(content) > _MAX_TEMPLATE_BYTES:
        raise NotUnderstoodError(f"it is a template of more than {_MAX_TEMPLATE_BYTES >> 20} MiB")
    return Judgement.of(template_findings(content.decode(errors="replace"), name))


_RULES: tuple[tuple[str, Severity, str, str, str], ...] = (
    (
        "piped-script",
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
        r"^\s*[!%]\s*(?:conda|mamba) install(?![^\n]*(=|-r |--file))",
        "A cell installs packages without versions.",
        "Pin the versions: conda install 'NAME=VERSION'.",
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
#: Rules of shell lines and of Python code, with different fixes for one cause.
_ONCE = frozenset(("piped-script", "extra-index"))


def scan_notebook(document: dict[str, Any], index: PackageIndex) -> Judgement:
    """Judge a notebook: its cells run only if the reader runs them, so each problem is a separate finding."""
    found: dict[tuple[str, str], tuple[Verdict, Finding]] = {}
    for number, cell in enumerate(document["cells"], 1):
        if isinstance(cell, dict):
            for verdict, finding in _of_cell(cell, number, index):
                # Names that are reported each have their own fix; a low severity is reported once.
                which = "" if finding.severity == "low" or finding.rule in _ONCE else finding.fix
                found.setdefault((finding.rule, which), (verdict, finding))
    return Judgement.of(found.values())


def _of_cell(cell: dict[str, Any], number: int, index: PackageIndex) -> Iterator[tuple[Verdict, Finding]]:
    source = _text(cell.get("source"))
    place = f"cell {number}"
    if cell.get("cell_type") == "code":
        for each in cell_findings(source, index):
            told = each.model_copy(update={"message": f"{place}: {each.message}"})
            yield ("plain" if each.severity == "low" else "needs code"), told
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


_BLOCK_START = re.compile(r"\{[{%]")
#: A quoted text, which may contain the end of a block, or the end of a block itself.
_TOKENS = re.compile(r"'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?|[%}]\}", re.DOTALL)
#: Ways to reach Python's internals from a template: a private attribute by name, subscript or filter.
_ESCAPES = re.compile(
    r"\.\s*_\w|\[[^\]]{0,200}['\"]_|\|\s*attr\b|\|\s*map\s*\([^)]{0,200}['\"]_|__\w+__|\\x5f|\\137|\\u005f",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
#: Innermost brackets; the first group is the end of the value if the brackets are its subscript.
_BRACKETS = re.compile(r"(\w+\s*|[\])'\"]\s*)?\[([^\[\]]*)\]")
_BEFORE_LIST = frozenset(("in", "if", "elif", "else", "or", "and", "not", "is"))
#: Operators and filters that build a text; a count or an index needs none of them.
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
    """Return what is wrong with a template; `place` is where it was found, for the message."""
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
    """Yield the blocks of a template, found twice: without and with regard to quotes around a block's end."""
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
    """Return a subscript that the template computes, as it may name Python's internals; empty if none."""
    blocks = [block[2:-2] for block in _blocks(text)]
    computed = {
        found[1] for block in blocks for found in _ASSIGNED.finditer(block) if _COMPUTES.search(found[2])
    }
    for block in blocks:
        if found_text := _UNDERSCORES.search(block):
            return found_text[0]
        # Quoted texts may contain brackets, so they are emptied.
        bare = _QUOTED.sub("''", block)
        for part in (*_subscripts(bare), *_BY_ATTRIBUTE.findall(bare)):
            if _COMPUTES.search(part) or part.strip() in computed:
                return str(part.strip())
    return ""


def _subscripts(block: str) -> Iterator[str]:
    """Yield the content of each subscript, innermost first; lists are no subscripts, but may contain some."""
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


#: Tokens of Hugging Face, GitHub, GitLab, AWS, Slack, OpenAI, W&B; private keys.
_ACCESS_WORDS = (
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{15,}|AKIA[0-9A-Z]{16}"
    r"|xox[abpr]-[\w-]{10,}|sk-[A-Za-z0-9_-]{32,}|WANDB_API_KEY\W{1,6}[0-9a-f]{40}"
    r"|(?i:aws_secret_access_key)\W{1,6}[A-Za-z0-9/+=]{40}"
)
_KEY = r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
#: Headers of a key that is protected by a passphrase.
_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY|Proc-Type: 4,ENCRYPTED")
_ANY = re.compile(f"{_ACCESS_WORDS}|{_KEY}")
_TOKEN_BYTES = re.compile(_ACCESS_WORDS.encode())
_KEY_BYTES = re.compile(_KEY.encode() + rb"\s+[A-Za-z0-9+/=:,\- ]{16}")
#: Patterns of passwords, by the end of the path of the file that contains them.
_BY_FILE = (
    (".netrc", re.compile(rb"\bpassword\s+\S+")),
    (".git-credentials", re.compile(rb"://[^/\s:@]+:[^/\s@]+@")),
    ("pip.conf", re.compile(rb"://[^/\s:@$]+:[^/\s@$]+@")),
    (".docker/config.json", re.compile(rb'"auth"\s*:\s*"[A-Za-z0-9+/=]{8,}"')),
    (".pgpass", re.compile(rb"^[^#\n]+(:[^:\n]*){3}:[^:\n]+$", re.MULTILINE)),
)
#: Example values from documentation, such as AKIAIOSFODNN7EXAMPLE, which are not secrets.
_EXAMPLE = re.compile(rb"EXAMPLE|xxxxxxxx|XXXXXXXX")


def holds_secret(text: str) -> bool:
    """Return whether a text holds a token or a private key."""
    return _ANY.search(text) is not None


def secret_kind(path: str, content: bytes) -> str:
    """Return the kind of secret in a file: ``key``, ``protected key``, ``token``, ``password`` or empty."""
    if _KEY_BYTES.search(content):
        return "protected key" if _ENCRYPTED.search(content) else "key"
    if any(not _EXAMPLE.search(each[0]) for each in _TOKEN_BYTES.finditer(content)):
        return "token"
    return (
        "password" if any(path.endswith(end) and pattern.search(content) for end, pattern in _BY_FILE) else ""
    )
