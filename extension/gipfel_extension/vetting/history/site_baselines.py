"""The usual figures of a whole site, from its registry, for users who agreed to share theirs."""

import http.client
import json
import os
import threading
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import TypeAdapter

from gipfel_cluster.model import Frozen

from .baselines import Baseline
from .share import asked, consents

_LIMIT_S = 4.0
_MOST_MODELS = 4
_MOST_BYTES = 1 << 20


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
    """What checks usually measure on these GPU models here; nothing where there is nobody to ask.

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
            with asked(path, environment, limit_s=limit_s) as answer:
                told = _ANSWER.validate_python(json.loads(answer.read(_MOST_BYTES)))
        except (OSError, ValueError, RecursionError, http.client.HTTPException):
            # It can't be reached, or does not let this user ask: the user's own figures must do.
            return
        found += [each for each in told.baselines if each.gpu_model == model]
