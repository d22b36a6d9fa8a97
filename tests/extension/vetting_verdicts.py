"""A protocol with two checks, and short constructors of results."""

from typing import Any

from gipfel_extension.vetting.model import CheckResult, Scope
from gipfel_extension.vetting.protocol_files import parse_protocol

TWO = parse_protocol(
    "name: two\nchecks:\n- {name: env, type: environment, parameters: {expected: {A: '1'}}}\n"
    "- {name: shm, type: shared_memory, tolerate_degraded: true}\n"
)


def verdict_of(node: str, check: str, verdict: str = "pass", **more: Any) -> CheckResult:
    common = {"type": check, "scope": Scope.NODE, "subject": node or "all", "reason": f"{check} said so."}
    return CheckResult.model_validate({**common, "check": check, "node": node, "verdict": verdict, **more})
