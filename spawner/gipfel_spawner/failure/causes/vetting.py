"""Nodes that were not fit, where the user wanted no server then."""

from .cause import Cause

_ALL_THE_SAME = (
    'To start on these nodes all the same, choose "Start all the same, and show the report in its panel".'
)

VETTING = (
    Cause(
        name="vetting-not-run",
        reason="The nodes could not be vetted: {what}",
        fix="Choose another protocol, or start without vetting.",
        patterns=(r"^gipfel: vet first: The nodes could not be vetted(?::| by) (?P<what>.*)",),
    ),
    Cause(
        name="vetting-image",
        reason="The vetting found a fault of the environment, not of the nodes: {what}",
        fix="Mend the image, its EDF or your variables as the reason says, or choose another environment: on "
        f"other nodes it would fail alike. {_ALL_THE_SAME}",
        patterns=(r"^gipfel: vet first: Fault of the image: (?P<what>.*)",),
    ),
    Cause(
        name="vetting-protocol",
        reason="The vetting found a fault of the protocol, not of the nodes: {what}",
        fix="Correct the protocol as the reason says, or choose one that suits these nodes: on other nodes "
        f"it would fail alike. {_ALL_THE_SAME}",
        patterns=(r"^gipfel: vet first: Fault of the protocol: (?P<what>.*)",),
    ),
    Cause(
        name="vetting-site",
        reason="The vetting found a fault that the nodes share, as of a file system or a service: {what}",
        fix="Tell the administrators the reason: other nodes would probably fail alike. A quota is yours: "
        f"delete files, or ask for more. {_ALL_THE_SAME}",
        patterns=(r"^gipfel: vet first: Fault of the site: (?P<what>.*)",),
    ),
    Cause(
        name="vetting-link",
        reason="The vetting found a fault between nodes, and can't say which of them has it: {what}",
        fix="Start again, which may bring other nodes; tell the administrators the names of both. "
        f"{_ALL_THE_SAME}",
        patterns=(r"^gipfel: vet first: Fault of the link: (?P<what>.*)",),
    ),
    Cause(
        name="vetting-failed",
        reason="The nodes were vetted first, and not all are fit: {what}",
        fix="Start again, which may bring other nodes; tell the administrators the node's name. Of several "
        f"nodes, a server can go on without those that are not fit. {_ALL_THE_SAME}",
        patterns=(r"^gipfel: vet first: (?P<what>.*)",),
    ),
)
