"""Gates: a network namespace around a command, with a proxy that has an allow list as its only way out.

``start`` decides whether a command can run behind a gate, and renders it; other packages read what
``log`` writes.
"""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network

#: Variable of the site with the cluster's address ranges; by default the private and link-local ones.
INSIDE = "GIPFEL_NETWORK_INSIDE"
PRIVATE_RANGES = "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 169.254.0.0/16 fc00::/7 fe80::/10"
Ranges = tuple[IPv4Network | IPv6Network, ...]


def inside_ranges(environment: Mapping[str, str]) -> Ranges:
    """Return the cluster's address ranges.

    Raises
    ------
    ValueError
        The variable `INSIDE` is not a list of address ranges.
    """
    listed = environment.get(INSIDE, "") or PRIVATE_RANGES
    return tuple(map(ip_network, listed.replace(",", " ").split()))
