"""The allow list of a gate, the network namespace of a command with a proxy as its only way out.

A gate is declared by an EDF's annotations, by a launch or service itself, or by the site's variables. If
several are declared, each can only restrict further, because all of them must allow a destination.

``com.gipfel.network.allow``, ``GIPFEL_NETWORK_ALLOW``
    Names and addresses, separated by spaces or commas; empty for none: ``example.org *.hf.co db.site:5432``.
``com.gipfel.network.mode``, ``GIPFEL_NETWORK_MODE``
    ``refuse`` (default): a command that can't run behind a gate does not start. ``warn``: it runs without
    the gate, and this is reported.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from ..model import Frozen, GipfelError, OneLine, split_list

PREFIX = "com.gipfel.network."
ALLOW, MODE = f"{PREFIX}allow", f"{PREFIX}mode"
SITE_ALLOW, SITE_MODE = "GIPFEL_NETWORK_ALLOW", "GIPFEL_NETWORK_MODE"
#: Variable with the gates of a job as JSON, for programs in its container that start other commands.
INHERITED = "GIPFEL_GATES"
#: The annotations that Gipfel itself reads.
ANNOTATIONS = (ALLOW, MODE)
#: Ports of an entry without one.
WEB_PORTS = (80, 443)
Mode = Literal["refuse", "warn"]

_MAX_HOSTS = 200
#: Characters of a host name. Source: RFC 1035, 255 bytes with the lengths of the first label and the root.
_MAX_NAME = 253
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_-]{1,63}){0,30}\.?")
#: Last label of a name that resolvers read as an IPv4 address. Source: WHATWG URL, "ends in a number".
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ENTRY = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")


class AllowedHost(Frozen):
    """One entry of an allow list: a name, ``*.`` and a domain for all names below it, or an address."""

    name: str
    ports: tuple[int, ...] = WEB_PORTS

    def matches(self, name: str, port: int) -> bool:
        """Return whether this entry allows a name, or an address, and a port."""
        if port not in self.ports:
            return False
        if self.name.startswith("*."):
            return name.endswith(self.name[1:]) and not is_address(name)
        return name == self.name


class Gate(Frozen):
    """An allow list, and what to do with a command that can't run behind a gate (`Mode`)."""

    allow: tuple[OneLine, ...] = Field((), max_length=_MAX_HOSTS)
    mode: Mode = "refuse"

    @field_validator("allow")
    @classmethod
    def _has_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            parse_host(entry)
        return value

    @property
    def hosts(self) -> tuple[AllowedHost, ...]:
        """Return the parsed entries."""
        return tuple(map(parse_host, self.allow))


class Gates(Frozen):
    """All gates that apply to a command: a destination must be allowed by each of them."""

    gates: Annotated[tuple[Gate, ...], Field(min_length=1, max_length=8)]

    @property
    def mode(self) -> Mode:
        """Return the strictest mode."""
        return "refuse" if any(each.mode == "refuse" for each in self.gates) else "warn"

    def allows(self, name: str, port: int) -> bool:
        """Return whether every gate allows a destination, a name or an address."""
        name = normal_name(name)
        return all(any(each.matches(name, port) for each in gate.hosts) for gate in self.gates)

    def allows_name(self, name: str) -> bool:
        """Return whether some port of a name is allowed, so that it may be resolved."""
        name = normal_name(name)
        return all(
            any(each.matches(name, port) for each in gate.hosts for port in each.ports[:1])
            for gate in self.gates
        )

    def lists(self, name: str) -> bool:
        """Return whether an entry is exactly this name, rather than a wildcard that matches it."""
        name = normal_name(name)
        return any(each.name == name for gate in self.gates for each in gate.hosts)

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports of all entries and 80 and 443, at most 64: those on which the gate listens."""
        found = {port for gate in self.gates for each in gate.hosts for port in each.ports}
        return tuple(sorted(found | set(WEB_PORTS)))[:64]

    def __str__(self) -> str:
        lists = [" ".join(gate.allow) or "no host" for gate in self.gates]
        return ", and of these ".join(lists)


def parse_host(entry: str) -> AllowedHost:
    """Parse an entry of an allow list, such as ``*.hf.co``, ``db.site:5432``, ``10.1.2.3`` or ``[::1]:80``.

    Raises
    ------
    ValueError
        It is not a name or address, with or without a port.
    """
    if not entry.isascii():
        # Checked before lower(), which turns letters such as the Kelvin sign into ASCII letters.
        raise ValueError(f"{entry[:80]!r} is not a host in ASCII: write the form that begins with xn--")
    found = _ENTRY.fullmatch(entry.strip().lower())
    if not found:
        raise ValueError(f"{entry[:80]!r} is not a host: write a name or an address, and :PORT if needed")
    ports: tuple[int, ...] = WEB_PORTS
    if found["port"]:
        if not 0 < int(found["port"]) < 1 << 16:
            raise ValueError(f"{entry[:80]!r} has a port that does not exist")
        ports = (int(found["port"]),)
    name = found["six"] or found["name"]
    try:
        return AllowedHost(name=normal_name(str(ip_address(name))), ports=ports)
    except ValueError:
        if found["six"] or not _HOST.fullmatch(name) or len(normal_name(name)) > _MAX_NAME:
            raise ValueError(f"{entry[:80]!r} is not a host: leave out scheme and path") from None
    if _NUMBER.fullmatch(normal_name(name).rpartition(".")[2]):
        raise ValueError(f"{entry[:80]!r} is not a host: write an address as 10.1.2.3 or [2001:db8::1]")
    return AllowedHost(name=normal_name(name), ports=ports)


def normal_name(name: str) -> str:
    """Return a host name in lower case without a final dot, or an address in its canonical form."""
    name = name.strip().rstrip(".").lower().strip("[]")
    try:
        address = ip_address(name)
    except ValueError:
        return name
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def is_address(name: str) -> bool:
    """Return whether a host is an address rather than a name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def network_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that declare an EDF's gate."""
    return {name: annotations[name] for name in ANNOTATIONS if name in annotations}


def gates_of(
    annotations: Mapping[str, str], environment: Mapping[str, str], own: Gate | None = None
) -> Gates | None:
    """Return the gates of an EDF, the site and a launch or service (``own``); None if none is declared.

    Raises
    ------
    GipfelError
        A list or a mode is not valid. The command must not start: it would run without the gate.
    """
    found = [] if own is None else [own]
    if inherited := environment.get(INHERITED):
        try:
            found += Gates.model_validate_json(inherited).gates
        except ValueError as error:
            raise GipfelError(
                f"{INHERITED} does not hold gates of this version.", "Start the job again."
            ) from error
    for where, allow, mode in (
        ("The EDF's", annotations.get(ALLOW), annotations.get(MODE)),
        ("The site's", environment.get(SITE_ALLOW), environment.get(SITE_MODE)),
    ):
        if allow is None and mode is None:
            continue
        if allow is None:
            raise GipfelError(
                f"{where} gate has a mode and no list of hosts.", f"Add {ALLOW}; empty allows no host."
            )
        try:
            found.append(Gate.model_validate({"allow": split_list(allow), "mode": mode or "refuse"}))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise GipfelError(
                f"{where} gate is not valid: {first['msg'].removeprefix('Value error, ')}.",
                "Write names or addresses, separated by spaces, and the mode refuse or warn.",
            ) from error
    return Gates(gates=tuple(found)) if found else None
