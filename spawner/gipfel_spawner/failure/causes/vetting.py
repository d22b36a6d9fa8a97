"""Nodes that were not fit, where the user wanted no server then."""

from .cause import Cause

VETTING = (
    Cause(
        name="vetting-not-run",
        reason="The nodes could not be vetted: {what}",
        fix="Choose another protocol, or start without vetting.",
        patterns=(r"^gipfel: vet first: The nodes could not be vetted(?::| by) (?P<what>.*)",),
    ),
    Cause(
        name="vetting-failed",
        reason="The nodes were vetted first, and not all are fit: {what}",
        fix="Start again, which may bring other nodes; tell the administrators the node's name. Of several "
        "nodes, a server can go on without those that are not fit. To work on these all the same, let the "
        "server start and the report be shown.",
        patterns=(r"^gipfel: vet first: (?P<what>.*)",),
    ),
)
