"""A gate around a command: a network namespace that leads out by a proxy with an allow list alone.

``start`` says what can run behind a gate and renders it; ``log`` is what others read of it.
"""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network

#: Lists the cluster's address ranges; by default those of private networks and of links.
INSIDE = "GIPFEL_NETWORK_INSIDE"
PRIVATE_RANGES = "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 169.254.0.0/16 fc00::/7 fe80::/10"
Ranges = tuple[IPv4Network | IPv6Network, ...]


def inside_ranges(environment: Mapping[str, str]) -> Ranges:
    """Return the cluster's address ranges.

    Raises
    ------
    ValueError
        The site's list is not one of address ranges.
    """
    listed = environment.get(INSIDE, "") or PRIVATE_RANGES
    return tuple(map(ip_network, listed.replace(",", " ").split()))
