"""The way between a node and the hub, in both directions."""

from .cause import Cause

_UNREACHED = (
    "connection refused|network is unreachable|no route to host|timed out|failed to connect"
    "|name or service not known|temporary failure in name resolution"
)

NETWORK = (
    Cause(
        name="hub-unreachable",
        reason="The node can't reach the hub: {said}",
        fix="Tell the hub's administrators: the nodes must reach the hub's address and port "
        "(JupyterHub.hub_ip, hub_connect_ip).",
        patterns=(
            r"(?P<said>the hub (?:at \S+ )?(?:can't be reached|did not answer)[^.]*)",
            r"failed to connect to my hub at (?P<said>\S+)",
            r"ClientConnector\w*Error: Cannot connect to host (?P<said>\S+)",
            rf"(?P<said>{_UNREACHED}).{{0,120}}/hub/api",
            rf"/hub/api.{{0,160}}(?P<said>{_UNREACHED})",
        ),
    ),
    Cause(
        name="port-blocked",
        reason="The server runs, but a firewall or a wrong address is between the hub and it.",
        fix="Tell the hub's administrators: open the servers' ports from the hub to the nodes, or give "
        "the range of ports that is open.",
        states=frozenset({"BLOCKED"}),
    ),
    Cause(
        name="port-taken",
        reason="No port was free for the server.",
        fix="Start again; tell the administrators to widen the range of ports if it comes back.",
        patterns=(r"address already in use", r"no port (?:in|of|from) .{0,80} is free"),
    ),
    Cause(
        name="token-refused",
        reason="The hub refused the server's token: the start was cancelled, or another one has begun.",
        fix="Start again.",
        patterns=(r"/hub/api/gipfel/server.{0,100}\b403\b", r"HTTP 403: Forbidden", r"HTTP Error 403"),
    ),
    Cause(
        name="server-silent",
        reason="The server gave no port; can the nodes reach the hub at {said}?",
        fix="Tell the hub's administrators; the log's last lines say how far it came.",
        states=frozenset({"SILENT"}),
    ),
)
