"""Time that all shipped rules take for 1 024 GPUs: of each second live, and of an hour that was recorded.

The peer is the second, and the hour. Prints rows as JSON.
"""

import json
import sys
import time
from collections.abc import Hashable

import numpy as np

from gipfel_extension.diagnosis.rule_run import Place, Reading, RuleWatch, hits_of
from gipfel_extension.diagnosis.rules import Rule
from gipfel_extension.rules import enabled_rules, known_rules
from gipfel_extension.telemetry.sample import Device, SampleTable

GPUS, SECONDS, HOUR_S = 1024, 120, 3600
BOUND = 0.02
_START_NS = 1_800_000_000 * 10**9


def main() -> int:
    """Print the rows; 1 where a bound does not hold."""
    rules = [each for each in enabled_rules(known_rules({"HOME": "/nonexistent"})[0]) if each.device_kind]
    rows = [_row(f"rules, live, {GPUS} GPUs", _live(rules) / SECONDS, 1.0)]
    rows.append(_row(f"rules, afterwards, {GPUS} GPUs", _afterwards(rules), float(HOUR_S)))
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if all(row["holds"] for row in rows) else 1


def _live(rules: list[Rule]) -> float:
    random = np.random.default_rng(1)
    watches = [RuleWatch(rule, _place) for rule in rules]
    values = random.normal(80, 3, (SECONDS, GPUS)).tolist()
    keys = [f"GPU-{number}" for number in range(GPUS)]
    began = time.process_time()
    for second in range(SECONDS):
        now_ns = _START_NS + second * 10**9
        readings = [
            Reading(key, now_ns, value, 100.0) for key, value in zip(keys, values[second], strict=True)
        ]
        for watch in watches:
            watch.add(readings)
    return time.process_time() - began


def _afterwards(rules: list[Rule]) -> float:
    random = np.random.default_rng(2)
    times = _START_NS + np.arange(HOUR_S) * 10**9
    metrics = {name for rule in rules for name in rule.metrics}
    course = {name: random.normal(80, 3, HOUR_S) for name in metrics}
    devices = [Device(f"GPU-{number}", "gpu", "GPU", number, "n") for number in range(GPUS)]
    devices += [Device(f"host-{number}", "host", "host", None, f"n{number}") for number in range(GPUS // 4)]
    table = SampleTable(tuple(devices), {each.uuid: {"time_ns": times, **course} for each in devices})
    began = time.process_time()
    hits_of(rules, table)
    return time.process_time() - began


def _place(key: Hashable) -> Place:
    return Place("", str(key), "", ())


def _row(name: str, ours: float, peer: float) -> dict[str, object]:
    return {
        "name": name,
        "ours": round(ours, 4),
        "peer": peer,
        "unit": "s of CPU",
        "ratio": round(ours / peer, 5),
        "bound": BOUND,
        "holds": ours <= BOUND * peer,
    }


if __name__ == "__main__":
    sys.exit(main())
