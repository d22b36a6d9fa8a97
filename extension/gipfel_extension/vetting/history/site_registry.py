"""Client of the site's registry: consent, sending a run, and the site's baselines.

No error here makes a vetting fail: a registry that does not respond only adds a sentence to the report.
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

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine, one_line
from gipfel_cluster.runs import make_private, write_atomically

from ...telemetry.files import read_regular
from ..model import Owner, Verdict
from .queries import Baseline
from .store import HistoryEntry, VettingRecord, history_root

_RESPONSE_LIMIT_S = 10.0
_MAX_RESPONSE_BYTES = 4000
_MAX_RESULTS = 50_000
_MAX_CONSENT_BYTES = 64 << 10
_CONSENT = "consent.json"
#: Types of checks whose reasons contain only GPUs, links, memory and numbers.
_HARDWARE_CHECKS = frozenset({
    "agent", "gpu_count", "gpu_memory", "temperature", "clocks", "power_limit", "ecc", "remapped_rows", "xid",
    "nvlink", "pcie", "memory_bandwidth", "matmul", "host_copy", "affinity", "host_memory", "shared_memory",
    "compute_mode", "collective", "clock_offset",
})  # fmt: skip
_BASELINES_LIMIT_S = 4.0
_MAX_MODELS = 4
_MAX_BYTES = 1 << 20


class SharedReport(Frozen):
    """Document of one run for the registry, without paths, values of variables, commands and user names.

    The registry identifies the sender by the token.
    """

    record: VettingRecord
    versions: dict[OneLine, OneLine] = Field(default_factory=dict, max_length=50)


class _Consent(Frozen):
    version: Literal[1] = 1
    share: bool


def has_consent(environment: Mapping[str, str], *, root: Path | None = None) -> bool:
    """Return whether the user has agreed to send results to the site's registry; False by default.

    ``GIPFEL_SHARE_VETTING`` (``yes`` or ``no``) decides for one run, else the decision that `set_consent`
    stored.
    """
    setting = environment.get("GIPFEL_SHARE_VETTING", "").strip().lower()
    if setting:
        return setting in {"yes", "true", "1"}
    try:
        path = (root or history_root(environment)) / _CONSENT
        return _Consent.model_validate_json(read_regular(path, _MAX_CONSENT_BYTES)).share
    except (OSError, ValidationError):
        return False


def set_consent(*, share: bool, root: Path | None = None) -> None:
    """Store the user's decision for all later runs.

    Raises
    ------
    GipfelError
        The file can't be written.
    """
    folder = root or history_root(os.environ)
    try:
        make_private(folder)
        write_atomically(folder / _CONSENT, _Consent(share=share).model_dump_json())
    except OSError as error:
        raise GipfelError(f"{folder / _CONSENT} can't be written: {error.strerror}.") from error


def share_record(
    record: VettingRecord,
    *,
    versions: Mapping[str, str] | None = None,
    environment: Mapping[str, str],
    root: Path | None = None,
    limit_s: float = _RESPONSE_LIMIT_S,
) -> str:
    """Send a run to the registry, and return the outcome as a sentence.

    It never raises, and waits `limit_s` seconds at most for each response.

    ``GIPFEL_REGISTRY_URL`` is its address, which the hub sets for every server. The token is
    ``GIPFEL_REGISTRY_TOKEN``, else ``JUPYTERHUB_API_TOKEN``.
    """
    if not has_consent(environment, root=root):
        return "The results were not sent: you have not agreed to share them."
    try:
        report = SharedReport(record=_public_record(record), versions=dict(versions or {}))
        # Every owner is the node; a registry of an earlier version rejects the field.
        body = report.model_dump_json(exclude={"record": {"entries": {"__all__": {"owner"}}}}).encode()
        with query_registry("api/reports", environment, body=body, limit_s=limit_s) as answer:
            answer.read(_MAX_RESPONSE_BYTES)
    except GipfelError as error:
        return f"The results were not sent: {error}"
    except urllib.error.HTTPError as error:
        return f"The registry refused the results: {_reason(error)}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", None) or error
        return one_line(f"The registry did not respond: {cause}.")[:300]
    return "The results were sent to the site's registry."


def _public_record(record: VettingRecord) -> VettingRecord:
    """Return the record without private data, and with at most as many results as the registry accepts.

    Results that did not pass are kept first, then those with a measurement. Reasons of failed or degraded
    hardware checks are kept. Those of other checks may contain paths, values of variables, or the output of a
    program.
    """
    # The registry counts faults of nodes, not those of an image, a protocol or the site.
    own = [each for each in record.entries if each.verdict is Verdict.PASS or each.owner is Owner.NODE]
    own.sort(key=lambda each: (each.verdict is Verdict.PASS, each.measurement is None))
    return record.model_copy(update={"entries": tuple(map(_public_entry, own[:_MAX_RESULTS]))})


def _public_entry(entry: HistoryEntry) -> HistoryEntry:
    if entry.type not in _HARDWARE_CHECKS:
        return entry.model_copy(update={"reason": "", "subject": ""})
    keep_reason = entry.verdict in {Verdict.FAIL, Verdict.DEGRADED}
    return entry if keep_reason else entry.model_copy(update={"reason": ""})


def _address(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the registry's URL and the user's token."""
    url = environment.get("GIPFEL_REGISTRY_URL", "")
    token = environment.get("GIPFEL_REGISTRY_TOKEN") or environment.get("JUPYTERHUB_API_TOKEN", "")
    if not url:
        raise GipfelError("this site has no registry of vetting results.")
    if not url.startswith(("http://", "https://")):
        raise GipfelError("GIPFEL_REGISTRY_URL is not a web address.")
    if not token.isascii() or not token or one_line(token) != token:
        raise GipfelError("neither GIPFEL_REGISTRY_TOKEN nor JUPYTERHUB_API_TOKEN holds a token.")
    return url, token


def query_registry(
    path: str,
    environment: Mapping[str, str],
    *,
    body: bytes | None = None,
    limit_s: float = _RESPONSE_LIMIT_S,
) -> AbstractContextManager[http.client.HTTPResponse]:
    """Return the registry's response to a request of this user; a body is sent by POST.

    Raises
    ------
    GipfelError
        There is no registry, or no token for it.
    OSError, ValueError
        It does not respond, or it rejects the request.
    """
    url, token = _address(environment)
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    # `_address` has checked the address.
    request = urllib.request.Request(f"{url.rstrip('/')}/{path}", data=body, headers=headers)  # noqa: S310
    # The hub is not behind a proxy that the environment may set for the internet, and a redirect would
    # send the token elsewhere.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    response: AbstractContextManager[http.client.HTTPResponse] = opener.open(request, timeout=limit_s)
    return response


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Reject every redirect."""


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        message = json.loads(error.read(_MAX_RESPONSE_BYTES))["message"]
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        message = f"{error.code} {error.reason}"
    return one_line(str(message))[:300]


class _Baselines(Frozen):
    baselines: tuple[Baseline, ...] = ()


def site_baselines(
    cluster: str,
    models: Collection[str],
    *,
    environment: Mapping[str, str],
    root: Path | None = None,
    limit_s: float = _BASELINES_LIMIT_S,
) -> tuple[Baseline, ...]:
    """Return the site's baselines for these GPU models; an empty tuple where no registry responds.

    It never raises, and takes `limit_s` seconds at most in total.
    """
    chosen = sorted(filter(None, models))[:_MAX_MODELS]
    if not chosen or not has_consent(environment, root=root):
        return ()
    found: list[Baseline] = []
    # Name resolution has no time limit: a thread that hangs in it is abandoned.
    thread = threading.Thread(target=_fetch, args=(cluster, chosen, environment, limit_s, found), daemon=True)
    thread.start()
    thread.join(limit_s)
    return tuple(found)


def _fetch(
    cluster: str, models: list[str], environment: Mapping[str, str], limit_s: float, baselines: list[Baseline]
) -> None:
    for model in models:
        query = urllib.parse.urlencode({"model": model, "days": 30})
        path = f"api/baselines/{urllib.parse.quote(cluster, safe='')}?{query}"
        try:
            with query_registry(path, environment, limit_s=limit_s) as response:
                content = _Baselines.model_validate_json(response.read(_MAX_BYTES))
        except (GipfelError, OSError, ValueError, http.client.HTTPException):
            # Without the registry, the user's own baselines are used.
            return
        baselines += [each for each in content.baselines if each.gpu_model == model]
