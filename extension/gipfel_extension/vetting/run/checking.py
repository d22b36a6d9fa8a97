"""One check on this node, inside the child that may be killed for it."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from ..check import CheckContext
from ..gpus.nvml import Nvml
from ..host import ThisHost
from ..local_probes import LocalProbes
from ..model import CheckResult
from ..one_check import run_check
from ..protocol import ProtocolCheck

RESULTS: TypeAdapter[tuple[CheckResult, ...]] = TypeAdapter(tuple[CheckResult, ...])


def check_here(
    entry: JsonValue, *, node: str, gpus: int | None, python: str, environment: Mapping[str, str]
) -> bytes:
    """The results of one entry of a protocol on this node, as JSON."""
    with tempfile.TemporaryDirectory(prefix="gipfel-vet-", ignore_cleanup_errors=True) as scratch:
        context = CheckContext(
            node=node,
            environment=environment,
            host=ThisHost(),
            gpus=Nvml(environment),
            probes=LocalProbes(python, environment),
            expected_gpus=gpus,
            scratch=Path(scratch),
        )
        results = run_check(ProtocolCheck.model_validate_json(json.dumps(entry)), context)
    return RESULTS.dump_json(tuple(results))
