"""Connections of a job, as a plain user can see them: who talks to whom, how much, and what listens."""

from .record import GateRecord, GateRow, NetworkRecord, read_gate, read_network
from .sockets import ClosedSockets, Socket, SocketTable
from .traffic import Limits, Owner, TrafficWatch

__all__ = [
    "ClosedSockets",
    "GateRecord",
    "GateRow",
    "Limits",
    "NetworkRecord",
    "Owner",
    "Socket",
    "SocketTable",
    "TrafficWatch",
    "read_gate",
    "read_network",
]
