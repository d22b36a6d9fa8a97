"""Judge the pickles in a file, which may hold several in a row."""

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import BinaryIO

from ..model import Finding, Judgement, Verdict
from .pickle_values import is_dangerous, is_plain
from .pickle_walk import Walk
from .streams import Budget, NotUnderstoodError

#: First value in a file of torch's format before zip. Source: ``torch.serialization.MAGIC_NUMBER``. Such a
#: file has five pickles: this number, protocol version, system information, the object, the storages' keys.
_TORCH_LEGACY = 0x1950A86A20F9469CFC6C
_TORCH_LEGACY_PICKLES = 5
_MAX_PICKLES = 1000
_SHOWN = 12
_CONVERT = "Save the tensors with safetensors and load that file instead."
_ASK = "Load it only where you trust its author, or ask for a safetensors file."


def scan_pickles(
    file: BinaryIO, budget: Budget, scan_bytes: Callable[[bytes], Judgement], *, certain: bool
) -> Judgement | None:
    """Judge the pickles at a file's position; None if the data is not a pickle.

    Parameters
    ----------
    scan_bytes
        Judges nested bytes that loading passes to ``torch.load`` without its protection: any torch file.
    certain
        Whether the data is known to be a pickle. Only if it is False may the result be None.
    """
    start = file.tell() if file.seekable() else 0
    walks: list[Walk] = []
    problem = _walk_all(file, budget, walks)
    if not certain and not _is_pickle(walks, problem):
        return None
    nested = [scan_bytes(content) for walk in walks for content in walk.nested]
    # Only a seekable, that is uncompressed, file can also be read by pickle instead of joblib.
    if any(walk.has_arrays for walk in walks) and file.seekable():
        file.seek(start)
        nested.append(_other_reading(file, budget))
    return Judgement.union([_judge(walks, problem), *nested])


def _walk_all(file: BinaryIO, budget: Budget, walks: list[Walk]) -> str:
    """Walk each pickle; return why the last one could not be read to its end, empty if it could."""
    limit = _MAX_PICKLES
    while len(walks) < limit:
        walk = Walk(file, budget)
        walks.append(walk)
        try:
            walk.run()
        except NotUnderstoodError as error:
            if len(walks) > 1 and not walk.names:
                # Loading does not read the data behind the last pickle.
                walks.pop()
                return ""
            return str(error)
        if len(walks) == 1 and walk.value == _TORCH_LEGACY:
            limit = _TORCH_LEGACY_PICKLES
        if not _peek(file):
            return ""
    return f"it has more than {limit} pickles" if limit == _MAX_PICKLES else ""


def _is_pickle(walks: Sequence[Walk], problem: str) -> bool:
    names = [name for walk in walks for name in walk.names]
    if any(is_dangerous(*name) for name in names):
        return True
    usable = [name for name in names if all(part.isidentifier() for each in name for part in each.split("."))]
    if problem:
        return bool(usable) and any(walk.calls for walk in walks)
    return bool(usable) or bool(walks[0].hidden or walks[0].unclear)


def _judge(walks: Sequence[Walk], problem: str) -> Judgement:
    names = list(dict.fromkeys(name for walk in walks for name in walk.names))
    bad = [name for name in names if is_dangerous(*name)]
    code = [name for name in names if name not in bad and not is_plain(*name)]
    hidden = list(dict.fromkeys(reason for walk in walks for reason in walk.hidden))
    unclear = list(dict.fromkeys(reason for walk in walks for reason in walk.unclear))
    if problem:
        unclear.append(problem)
    findings: list[tuple[Verdict, Finding]] = []
    if bad:
        message = f"Loading it calls {_shown(bad)}."
        fix = "Don't load it; delete it, and report it to its publisher."
        findings.append(
            ("malicious", Finding(rule="pickle-code", severity="critical", message=message, fix=fix))
        )
    findings += [
        (
            "malicious",
            Finding(
                rule="pickle-hidden-name",
                severity="critical",
                message=f"Loading it runs code: {why}.",
                fix=_ASK,
            ),
        )
        for why in hidden
    ]
    if code:
        message = f"Loading it runs code of {_shown(code)}."
        findings.append(
            ("needs code", Finding(rule="pickle-needs-code", severity="high", message=message, fix=_CONVERT))
        )
    findings += [
        (
            "not understood",
            Finding(
                rule="pickle-unclear", severity="medium", message=f"It could not be judged: {why}.", fix=_ASK
            ),
        )
        for why in unclear
    ]
    return Judgement.of(findings)


def _other_reading(file: BinaryIO, budget: Budget) -> Judgement:
    """Judge what ``pickle.load`` would do with a joblib file: it would read the arrays' bytes as opcodes."""
    walk = Walk(file, budget, joblib=False)
    with suppress(NotUnderstoodError):
        walk.run()
    names = [name for name in walk.names if is_dangerous(*name)]
    if not names:
        return Judgement()
    message = f"Loading it with pickle instead of joblib calls {_shown(names)}."
    finding = Finding(rule="pickle-two-readings", severity="critical", message=message, fix=_ASK)
    return Judgement.of([("malicious", finding)])


def _shown(names: Iterable[tuple[str, str]]) -> str:
    shown = [f"{module}.{name}"[:120] for module, name in names]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _peek(file: BinaryIO) -> bytes:
    peek = getattr(file, "peek", None)
    if peek is not None:
        return bytes(peek(1)[:1])
    content = file.read(1)
    file.seek(-len(content), io.SEEK_CUR)
    return content
