"""JSON files of models: remote code, layers that hold code, classes of other modules, templates."""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from ..model import Finding, Verdict
from .callables import is_dangerous
from .judgement import Judgement
from .notebooks import scan_notebook
from .streams import NotUnderstoodError
from .templates import template_findings

_MAX_BYTES = 64 << 20
_MAX_TEMPLATE_BYTES = 4 << 20
_MAX_VALUES = 2_000_000
_KERAS_ROOTS = ("keras", "tensorflow", "tf_keras", "keras_nlp", "keras_hub", "keras_cv")
_LAMBDA = re.compile(rb'"class_name"\s*:\s*"(Lambda|TFOpLambda|__lambda__)"')
_MODULE = re.compile(rb'"module"\s*:\s*"([^"\\\0]{1,200})"')
#: An escape of a character that JSON holds as it is, which no program writes.
_HIDDEN = re.compile(rb"\\u00(?!7[fF])[2-7][0-9a-fA-F]")
_OVERLAP = 4096
_CHUNK = 1 << 20

Found = Iterator[tuple[Verdict, Finding]]


def scan_json(file: BinaryIO) -> Judgement:
    """Judge a JSON file: a configuration of transformers or Keras, an index, a notebook."""
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
        return scan_notebook(document)
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
        # "fn" reached through a registered function: the module may be any that Python can import.
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
    """Judge an HDF5 file by the configuration of Keras that it may hold, which it stores as one text."""
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
    """Judge a Jinja file, as which models carry their chat template."""
    content = file.read(_MAX_TEMPLATE_BYTES + 1)
    if len(content) > _MAX_TEMPLATE_BYTES:
        raise NotUnderstoodError(f"it is a template of more than {_MAX_TEMPLATE_BYTES >> 20} MiB")
    return Judgement.of(template_findings(content.decode(errors="replace"), name))
