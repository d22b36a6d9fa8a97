"""Network between nodes compared with its reference values: pairs that are slow alike are not fit."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from gipfel_cluster.model import Frozen

from ..attribution.state import PairSettings
from ..model import CheckResult, Owner, Verdict
from ..probing import ProbeSpec
from ..protocol import ProtocolCheck
from ..quantities import with_unit
from ..reference_values import ReferenceValue, best_known_network
from .groups import GroupOutcome

#: Methods whose measurement is what one node sends to the other.
_COMPARABLE = ("allreduce", "send")
_SOCKETS = "socket"


class Network(Frozen):
    """Network of a pair, as the probe found it.

    Parameters
    ----------
    fabric
        Of the node's adapters; empty where sysfs shows none that is known.
    rate
        Bits per second of one adapter.
    transport
        What NCCL says it uses; "gloo" on CPUs; empty where it said nothing.
    """

    fabric: str = ""
    adapters: int = 0
    rate: float = 0.0
    transport: str = ""

    @property
    def name(self) -> str:
        """Return what to call it."""
        return self.fabric or (f"NCCL's network {self.transport}" if self.transport else "this network")

    @property
    def by_sockets(self) -> bool:
        """Return whether data goes through sockets although the node has something faster."""
        return bool(self.fabric) and self.transport.lower() == _SOCKETS

    def reference(self, spec: ProbeSpec) -> ReferenceValue | None:
        """Return what is known of it for this probe."""
        if self.transport == "gloo" or spec.request.get("method") not in _COMPARABLE:
            return None
        # One rank takes one adapter.
        one = not spec.per_gpu or spec.request.get("method") == "send"
        return best_known_network(self.fabric, self.rate, min(1, self.adapters) if one else self.adapters)


def network_of(outcomes: Sequence[GroupOutcome], gpus: int) -> Network:
    """Return the fastest network that any pair has shown: a node that lacks an adapter is held against it.

    Parameters
    ----------
    gpus
        Ranks of a node, which use no more adapters than they are.
    """
    found = []
    for each in outcomes:
        given: Any = each.answer.evidence.get("network")
        try:
            network = Network.model_validate(given or {})
        except ValidationError:
            continue
        found.append(network.model_copy(update={"adapters": min(network.adapters, max(1, gpus))}))
    # Sockets are told where any pair uses them.
    return max(found, key=lambda each: (each.rate * each.adapters, each.by_sockets), default=Network())


def settings_for(
    settings: PairSettings, entry: ProtocolCheck, reference: ReferenceValue | None
) -> PairSettings:
    """Return the settings with the floor that the network gives."""
    share = entry.threshold.of_best_known if entry.threshold else None
    if share is None or reference is None:
        return settings
    return settings.model_copy(update={"floor": max(settings.floor, share * reference.value)})


def held_against(
    result: CheckResult,
    entry: ProtocolCheck,
    settings: PairSettings,
    network: Network,
    reference: ReferenceValue | None,
) -> CheckResult:
    """Return a verdict of pairs with compared with what its network can do."""
    measured = result.figure
    if measured is None or not entry.threshold:
        return result
    if result.verdict is Verdict.FAIL and network.by_sockets and measured < settings.floor:
        reason = f"{result.reason} NCCL uses sockets, though the node has {network.name}."
        fix = "Give the image NCCL's network plugin, or switch on the hook that mounts it."
        return result.with_verdict(Verdict.FAIL, reason, fix=fix).model_copy(update={"owner": Owner.IMAGE})
    if result.verdict not in {Verdict.PASS, Verdict.DEGRADED}:
        return result
    if reference is not None and measured > reference.too_much:
        most = with_unit(reference.too_much, result.unit)
        reason = f"{with_unit(measured, result.unit)} is more than {network.name} can do ({most})."
        fix = "Something was measured wrongly: report it with the evidence."
    elif entry.threshold.of_best_known is not None and not (settings.floor or settings.baseline):
        reason = (
            f"{with_unit(measured, result.unit)}: no reference value is known for {network.name}"
            " and none is stored, so that all pairs may be slow alike."
        )
        line = f", line {entry.line}" if entry.line else ""
        fix = f"Set at_least in the threshold of the check {entry.name!r}{line} of the protocol."
    else:
        return result
    changed = result.with_verdict(Verdict.INCONCLUSIVE, reason, fix=fix)
    return changed.model_copy(update={"owner": Owner.PROTOCOL})
