"""One check on this node, inside the child that may be killed for it."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from gipfel_cluster.scratch import ScratchFolder

from ..check import CheckContext
from ..fork_server import ForkServer
from ..gpus.nvml import Nvml
from ..host import ThisHost
from ..local_probes import LocalProbes
from ..model import CheckResult
from ..one_check import run_check
from ..protocol import ProtocolCheck

RESULTS: TypeAdapter[tuple[CheckResult, ...]] = TypeAdapter(tuple[CheckResult, ...])


def check_here(
    entry: JsonValue,
    *,
    node: str,
    gpus: int | None,
    python: str,
    environment: Mapping[str, str],
    server: ForkServer | None = None,
) -> bytes:
    """The results of one entry of a protocol on this node, as JSON."""
    scratch = ScratchFolder.create(Path(tempfile.gettempdir()))
    try:
        context = CheckContext(
            node=node,
            environment=environment,
            host=ThisHost(),
            gpus=Nvml(environment),
            probes=LocalProbes(python, environment, server),
            expected_gpus=gpus,
            scratch=scratch.path,
        )
        results = run_check(ProtocolCheck.model_validate_json(json.dumps(entry)), context)
    finally:
        scratch.remove()
    return RESULTS.dump_json(tuple(results))
