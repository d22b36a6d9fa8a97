"""Client of the site's registry: consent, sending a run, and the site's baselines.

Nothing here makes a vetting fail: a registry that does not answer is a sentence in the report.
"""

import http.client
import json
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line, one_line
from gipfel_cluster.runs import make_private, write_atomically

from ...telemetry.files import read_regular
from ..model import Owner, Verdict
from .queries import Baseline
from .store import HistoryEntry, VettingRecord, history_root

_ANSWER_S = 10.0
_MOST_ANSWER_BYTES = 4000
_MOST_RESULTS = 50_000
_MOST_CONSENT_BYTES = 64 << 10
_CONSENT = "consent.json"
#: Types of checks whose sentences name GPUs, links, memory and figures alone.
_ABOUT_HARDWARE = frozenset({
    "agent", "gpu_count", "gpu_memory", "temperature", "clocks", "power_limit", "ecc", "remapped_rows", "xid",
    "nvlink", "pcie", "memory_bandwidth", "matmul", "host_copy", "affinity", "host_memory", "shared_memory",
    "compute_mode", "collective", "clock_offset",
})  # fmt: skip
_LIMIT_S = 4.0
_MOST_MODELS = 4
_MOST_BYTES = 1 << 20


class SharedReport(Frozen):
    """Document that the registry receives of one run: no paths, values of variables, commands or user names.

    Who sent it is the registry's to find out, from the token.
    """

    record: VettingRecord
    versions: dict[Line, Line] = Field(default_factory=dict, max_length=50)


class Shared(Frozen):
    """Outcome of sharing: ``sent``, and one sentence."""

    sent: bool
    words: str


class _Consent(Frozen):
    version: Literal[1] = 1
    share: bool


def consents(environment: Mapping[str, str] | None = None, *, root: Path | None = None) -> bool:
    """Return whether the user agreed that results go to the site's registry; False by default.

    ``GIPFEL_SHARE_VETTING`` (``yes`` or ``no``) decides for one run, else what `set_consent` kept.
    """
    environment = os.environ if environment is None else environment
    given = environment.get("GIPFEL_SHARE_VETTING", "").strip().lower()
    if given:
        return given in {"yes", "true", "1"}
    try:
        path = (root or history_root(environment)) / _CONSENT
        return _Consent.model_validate_json(read_regular(path, _MOST_CONSENT_BYTES)).share
    except (OSError, ValidationError):
        return False


def set_consent(*, share: bool, root: Path | None = None) -> None:
    """Keep the user's decision for all later runs.

    Raises
    ------
    GipfelError
        The file can't be written.
    """
    folder = root or history_root()
    try:
        make_private(folder)
        write_atomically(folder / _CONSENT, _Consent(share=share).model_dump_json())
    except OSError as error:
        raise GipfelError(f"{folder / _CONSENT} can't be written: {error.strerror}.") from error


def share_record(
    record: VettingRecord,
    *,
    versions: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    root: Path | None = None,
    limit_s: float = _ANSWER_S,
) -> Shared:
    """Send a run to the registry; it never raises, and takes `limit_s` seconds at most per answer.

    ``GIPFEL_REGISTRY_URL`` says where it is, as the hub's configuration gives it to every server, and
    ``GIPFEL_REGISTRY_TOKEN``, else ``JUPYTERHUB_API_TOKEN``, who sends.
    """
    environment = os.environ if environment is None else environment
    if not consents(environment, root=root):
        return Shared(sent=False, words="The results stay with you: you did not agree to share them.")
    if missing := _missing(*_address(environment)):
        return Shared(sent=False, words=f"The results were not shared: {missing}")
    try:
        report = SharedReport(
            record=_without_what_is_private(_shortened(record)), versions=dict(versions or {})
        )
        # All are the nodes' own; a registry of an earlier version does not know the field.
        body = report.model_dump_json(exclude={"record": {"entries": {"__all__": {"owner"}}}}).encode()
        with query_registry("api/reports", environment, body=body, limit_s=limit_s) as answer:
            answer.read(_MOST_ANSWER_BYTES)
        return Shared(sent=True, words="The results were sent to the site's registry.")
    except urllib.error.HTTPError as error:
        return Shared(sent=False, words=f"The registry refused the results: {_reason(error)}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        words = getattr(error, "reason", None) or error
        return Shared(sent=False, words=one_line(f"The registry did not answer: {words}.")[:300])


def _shortened(record: VettingRecord) -> VettingRecord:
    """Return at most as many results as the registry takes: bad ones first, then those with a measurement."""
    if len(record.entries) <= _MOST_RESULTS:
        return record
    kept = sorted(record.entries, key=lambda each: (each.verdict is Verdict.PASS, each.figure is None))
    return record.model_copy(update={"entries": tuple(kept[:_MOST_RESULTS])})


def _without_what_is_private(record: VettingRecord) -> VettingRecord:
    """Return the record without sentences that may hold private content.

    Those of checks of the hardware that failed or are degraded stay: they say what is wrong with the node.
    Others may name paths, values of variables, or what a program printed.
    """
    # The registry counts what nodes failed: faults of an image, a protocol or the site are none of theirs.
    own = (each for each in record.entries if each.verdict is Verdict.PASS or each.owner is Owner.NODE)
    return record.model_copy(update={"entries": tuple(map(_public, own))})


def _public(entry: HistoryEntry) -> HistoryEntry:
    if entry.type not in _ABOUT_HARDWARE:
        return entry.model_copy(update={"reason": "", "subject": ""})
    told = entry.verdict in {Verdict.FAIL, Verdict.DEGRADED}
    return entry if told else entry.model_copy(update={"reason": ""})


def _address(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the registry's URL and the user's token."""
    token = environment.get("GIPFEL_REGISTRY_TOKEN") or environment.get("JUPYTERHUB_API_TOKEN", "")
    return environment.get("GIPFEL_REGISTRY_URL", ""), token


def _missing(url: str, token: str) -> str:
    if not url:
        return "this site has no registry of vetting results."
    if not url.startswith(("http://", "https://")):
        return "GIPFEL_REGISTRY_URL is not a web address."
    if not token.isascii() or not token or one_line(token) != token:
        return "there is no token of the hub here."
    return ""


def query_registry(
    path: str, environment: Mapping[str, str], *, body: bytes | None = None, limit_s: float = _ANSWER_S
) -> AbstractContextManager[http.client.HTTPResponse]:
    """Return the registry's answer to a request of this user; a body is posted.

    Raises
    ------
    OSError, ValueError
        There is none, it does not answer, or refuses.
    """
    url, token = _address(environment)
    if missing := _missing(url, token):
        raise ValueError(missing)
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    # The address was checked by `_missing`.
    request = urllib.request.Request(f"{url.rstrip('/')}/{path}", data=body, headers=headers)  # noqa: S310
    # The hub is not behind the proxy that the environment may name for the internet, and a redirect would
    # carry the token elsewhere.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    answer: AbstractContextManager[http.client.HTTPResponse] = opener.open(request, timeout=limit_s)
    return answer


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow no redirect."""


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        words = json.loads(error.read(_MOST_ANSWER_BYTES))["message"]
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        words = f"{error.code} {error.reason}"
    return one_line(str(words))[:300]


class _Answer(Frozen):
    baselines: tuple[Baseline, ...] = ()


_ANSWER = TypeAdapter(_Answer)


def site_baselines(
    cluster: str,
    models: Collection[str],
    *,
    environment: Mapping[str, str] | None = None,
    root: Path | None = None,
    limit_s: float = _LIMIT_S,
) -> tuple[Baseline, ...]:
    """Return the site's baselines for these GPU models; empty where no registry answers.

    It never raises, and takes `limit_s` seconds at most for all of them.
    """
    environment = os.environ if environment is None else environment
    wanted = sorted(filter(None, models))[:_MOST_MODELS]
    if not wanted or not consents(environment, root=root):
        return ()
    found: list[Baseline] = []
    # A name server that does not answer knows no time limit: whoever waits for it is left behind.
    thread = threading.Thread(target=_ask, args=(cluster, wanted, environment, limit_s, found), daemon=True)
    thread.start()
    thread.join(limit_s)
    return tuple(found)


def _ask(
    cluster: str, models: list[str], environment: Mapping[str, str], limit_s: float, found: list[Baseline]
) -> None:
    for model in models:
        query = urllib.parse.urlencode({"model": model, "days": 30})
        path = f"api/baselines/{urllib.parse.quote(cluster, safe='')}?{query}"
        try:
            with query_registry(path, environment, limit_s=limit_s) as answer:
                told = _ANSWER.validate_python(json.loads(answer.read(_MOST_BYTES)))
        except (OSError, ValueError, RecursionError, http.client.HTTPException):
            # It can't be reached, or does not let this user ask: the user's own figures must do.
            return
        found += [each for each in told.baselines if each.gpu_model == model]
