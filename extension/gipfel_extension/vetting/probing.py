"""Probes: single files that the image's own Python runs, JSON in and JSON out.

A probe reads one JSON document from its standard input and prints one line ``{"gipfel_probe": 1, …}``;
other lines, such as a library's, are skipped. It gets rank, world size and master through the environment,
as torch.distributed reads them.
"""

import json
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field, JsonValue, ValidationError

from gipfel_cluster.model import Frozen

PROBES = Path(__file__).parent / "checks" / "probes"
#: The key that marks a probe's line.
MARK = "gipfel_probe"
#: A probe prints kilobytes; whoever prints more than this is no probe of ours.
LARGEST_ANSWER = 4_000_000


class ProbeSpec(Frozen):
    """One probe to be run: the image's Python, then `argv`, with `request` as JSON on standard input.

    Parameters
    ----------
    argv
        What follows the image's Python: the probe's file.
    request
        The probe's parameters.
    time_limit_s
        Seconds after which the process and all its children are killed.
    per_gpu
        In a group: one rank per GPU of each node; one rank per node otherwise.
    torch
        Whether it imports torch: it is then forked from a process that has, where there is one.
    """

    argv: tuple[str, ...]
    request: dict[str, JsonValue] = Field(default_factory=dict)
    time_limit_s: float = 60.0
    per_gpu: bool = False
    torch: bool = False

    def stdin(self) -> bytes:
        """Return the probe's standard input."""
        return json.dumps(self.request).encode()


class ProbeAnswer(Frozen):
    """Answer of one probe process.

    Parameters
    ----------
    error
        Why there is no measurement, as one sentence; empty where there is one.
    samples
        Without the first one, which holds the warming up; in `unit`.
    wrong
        How many values of the result were not what they must be.
    missing
        The module or tool that the image lacks; empty where nothing is missing.
    """

    error: str = ""
    samples: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = ()
    unit: str = ""
    wrong: Annotated[int, Field(ge=0)] = 0
    missing: str = ""
    devices: tuple[dict[str, JsonValue], ...] = ()
    evidence: dict[str, JsonValue] = Field(default_factory=dict)


class ProbeRunner(Protocol):
    """Runs probes on this node, one at a time."""

    def run(self, spec: ProbeSpec) -> ProbeAnswer:
        """Return the probe's answer; every failure is its `error`."""


def probe_file(name: str) -> str:
    """Return the path of a shipped probe."""
    return str(PROBES / f"{name}.py")


def read_answer(output: bytes, *, status: int | None, said: str = "") -> ProbeAnswer:
    """Return the probe's answer, or an answer with the error.

    Parameters
    ----------
    status
        Exit status; negative for a signal, None where it was killed at its time limit.
    said
        The end of its standard error.
    """
    if status is None:
        return ProbeAnswer(error="The probe did not end within its time limit.")
    for line in reversed(output[-LARGEST_ANSWER:].decode(errors="replace").splitlines()):
        if not line.startswith("{"):
            continue
        try:
            document = json.loads(line)
            if document.pop(MARK, None) == 1:
                return ProbeAnswer.model_validate(document)
        except (ValueError, ValidationError, AttributeError, RecursionError):
            continue
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "nothing")
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return ProbeAnswer(error=f"The probe {ended} without an answer; its last output: {last[:300]}")
