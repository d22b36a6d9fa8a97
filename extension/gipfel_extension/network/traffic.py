"""Destinations, bytes and listening ports of a job on one node, and the events that they cause."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gipfel_cluster.egress import Ranges, inside_ranges

from .sockets import Address, Socket

_MINUTE_NS = 60 * 10**9
_MOST_FLOWS = 2000
#: Maximum number of events about single destinations or ports; further ones only count for the rate.
_MOST_EVENTS = 50
_DNS_PORT = 53


@dataclass(frozen=True)
class Owner:
    """A process of the job that owns a socket.

    Parameters
    ----------
    program
        Name of the process, as ``ps`` prints it.
    rank
        Rank of the process; None if it is not a rank.
    """

    program: str
    rank: int | None = None


@dataclass(frozen=True)
class Limits:
    """A site's limits above which a job's traffic causes an event.

    Parameters
    ----------
    new_destinations
        Maximum number of new destinations outside of the cluster within a minute.
    sent_bytes
        Maximum bytes that one node of the job sends to destinations outside of the cluster.
    inside
        Address ranges of the cluster; connections to them are recorded but cause no events.
    """

    new_destinations: int = 30
    sent_bytes: float = 10e9
    inside: Ranges = field(default_factory=lambda: inside_ranges({}))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Limits":
        """Return the limits of ``GIPFEL_NETWORK_NEW_PER_MINUTE``, ``_GB`` and ``_INSIDE``.

        Raises
        ------
        ValueError
            A value is not a number or not a list of address ranges.
        """
        new = int(environment.get("GIPFEL_NETWORK_NEW_PER_MINUTE", "") or 30)
        sent = float(environment.get("GIPFEL_NETWORK_GB", "") or 10) * 1e9
        if new < 1 or not 0 < sent < float("inf"):
            raise ValueError("the limits of network traffic must be greater than 0")
        return cls(new, sent, inside_ranges(environment))

    def is_inside(self, address: Address) -> bool:
        """Return whether an address is in the cluster."""
        return any(address.version == each.version and address in each for each in self.inside)


@dataclass(frozen=True)
class FlowKey:
    """Key of a flow: all connections between one program and one peer and port.

    Parameters
    ----------
    direction
        ``out`` for connections of the job, ``in`` for connections to it, ``listen`` for a port that it opens.
    port
        The peer's port for ``out``, else the job's own.
    """

    direction: str
    protocol: str
    address: str
    port: int
    program: str
    rank: int | None = None


@dataclass
class Flow:
    """Totals of a flow since the recording began.

    ``sent`` and ``received`` are bytes of the connections with byte counts; ``counted`` is False without any.
    ``inside`` is True if the peer is in the cluster.
    """

    first_ns: int
    last_ns: int
    connections: int = 0
    sent: int = 0
    received: int = 0
    counted: bool = False
    inside: bool = False


Finding = tuple[str, str]


class TrafficWatch:
    """Converter of successive lists of a node's sockets into flows and events of the job.

    Parameters
    ----------
    owner
        Function that returns the process of the job that owns a socket; None for other sockets.
    """

    def __init__(self, limits: Limits, owner: Callable[[Socket], Owner | None]) -> None:
        self._limits, self._owner = limits, owner
        self.flows: dict[FlowKey, Flow] = {}
        self._sockets: dict[tuple[object, ...], tuple[FlowKey, int, int]] = {}
        self._new: deque[int] = deque()
        self._events = 0
        self._rate_ns: int | None = None
        self._volume_reported = False
        self.dropped = 0
        #: Names of destinations at gates, by address and port: their event is that of the gate, not one here.
        self.names: Mapping[tuple[str, int], str] = {}

    def update(
        self, sockets: Iterable[Socket], ended: Iterable[Socket], now_ns: int
    ) -> tuple[set[FlowKey], list[Finding]]:
        """Update flows from a list of all sockets and from the connections that ended since the last one.

        Returns
        -------
        Keys of the flows that changed, and events as kind and message.
        """
        present = list(sockets)
        ports = {each.local_port for each in present if each.listening}
        changed: set[FlowKey] = set()
        findings: list[Finding] = []
        known = self._sockets
        self._sockets = {}
        for each in present:
            identity = _identity(each)
            entry = known.get(identity)
            if entry is None:
                entry = self._first(each, ports, now_ns, changed, findings)
                if entry is None:
                    continue
            self._sockets[identity] = self._count(entry, each, now_ns, changed)
        for each in ended:
            entry = known.get(_identity(each)) or self._sockets.get(_identity(each))
            if entry is not None:
                self._sockets.pop(_identity(each), None)
                self._count(entry, each, now_ns, changed)
        findings += self._limits_exceeded(now_ns)
        return changed, findings

    def count_refused(self, count: int, now_ns: int) -> None:
        """Count refused destinations as new destinations for the rate limit."""
        self._new.extend([now_ns] * count)

    def _first(
        self, each: Socket, ports: set[int], now_ns: int, changed: set[FlowKey], findings: list[Finding]
    ) -> tuple[FlowKey, int, int] | None:
        """Return the flow of a new socket, with 0 bytes sent and received; None if it is not recorded."""
        if each.remote.is_loopback or (each.listening and each.local.is_loopback):
            return None
        owner = self._owner(each)
        if owner is None:
            return None
        key = _key(each, owner, ports)
        flow = self.flows.get(key)
        if flow is None:
            if len(self.flows) >= _MOST_FLOWS:
                self.dropped += 1
                return None
            inside = key.direction != "listen" and self._limits.is_inside(each.remote)
            flow = self.flows[key] = Flow(now_ns, now_ns, inside=inside)
            findings += self._first_of_flow(key, flow, now_ns)
        flow.connections += not each.listening
        changed.add(key)
        return key, 0, 0

    def _count(
        self, entry: tuple[FlowKey, int, int], each: Socket, now_ns: int, changed: set[FlowKey]
    ) -> tuple[FlowKey, int, int]:
        key, sent, received = entry
        flow = self.flows[key]
        flow.last_ns = now_ns
        if each.sent is None or each.received is None:
            return entry
        flow.counted = True
        if each.sent > sent or each.received > received:
            flow.sent += max(0, each.sent - sent)
            flow.received += max(0, each.received - received)
            changed.add(key)
        return key, max(sent, each.sent), max(received, each.received)

    def _first_of_flow(self, key: FlowKey, flow: Flow, now_ns: int) -> list[Finding]:
        if key.direction == "listen":
            if key.address not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
                return []
            return self._limited(
                "network_listener", f"{_who(key)} listens on all interfaces, port {key.port}."
            )
        if key.direction != "out" or flow.inside or key.port == _DNS_PORT:
            return []
        self._new.append(now_ns)
        if (key.address, key.port) in self.names:
            return []
        return self._limited(
            "network_destination",
            f"{_who(key)} connects to {_at(key)}, for the first time in this run. Its name is unknown.",
        )

    def _limited(self, kind: str, message: str) -> list[Finding]:
        self._events += 1
        if self._events > _MOST_EVENTS:
            return []
        if self._events == _MOST_EVENTS:
            message += " Further ones are not reported: gipfel net lists them."
        return [(kind, message)]

    def _limits_exceeded(self, now_ns: int) -> list[Finding]:
        found = []
        while self._new and now_ns - self._new[0] > _MINUTE_NS:
            self._new.popleft()
        limit = self._limits.new_destinations
        due = self._rate_ns is None or now_ns - self._rate_ns > 10 * _MINUTE_NS
        if len(self._new) > limit and due:
            self._rate_ns = now_ns
            found.append(
                (
                    "network_rate",
                    f"The job reached {len(self._new)} new destinations within a minute (limit {limit}).",
                )
            )
        sent = {k: f.sent for k, f in self.flows.items() if k.direction != "listen" and not f.inside}
        total = sum(sent.values())
        if total > self._limits.sent_bytes and not self._volume_reported:
            self._volume_reported = True
            most = max(sent, key=lambda key: sent[key])
            message = (
                f"The job sent {total / 1e9:.3g} GB outside of the cluster "
                f"(limit {self._limits.sent_bytes / 1e9:.3g}), most of it {_who(most)} to {_at(most)}."
            )
            found.append(("network_volume", message))
        return found


def _key(each: Socket, owner: Owner, ports: set[int]) -> FlowKey:
    if each.listening:
        return FlowKey("listen", each.protocol, str(each.local), each.local_port, owner.program, owner.rank)
    incoming = each.protocol == "tcp" and each.local_port in ports
    port = each.local_port if incoming else each.remote_port
    direction = "in" if incoming else "out"
    return FlowKey(direction, each.protocol, str(each.remote), port, owner.program, owner.rank)


def _identity(each: Socket) -> tuple[object, ...]:
    if each.cookie:
        return (each.cookie,)
    return each.protocol, each.local, each.local_port, each.remote, each.remote_port, each.inode


def _who(key: FlowKey) -> str:
    return key.program if key.rank is None else f"{key.program} (rank {key.rank})"


def _at(key: FlowKey) -> str:
    address = f"[{key.address}]" if ":" in key.address else key.address
    return f"{address}:{key.port} ({key.protocol.upper()})"
