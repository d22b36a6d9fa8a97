"""DNS messages (RFC 1035): parse the queries of programs behind a gate, and encode the answers."""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

#: Response codes (RCODE of RFC 1035).
OK, MALFORMED, FAILED, UNKNOWN, REFUSED = 0, 1, 2, 3, 5
#: Record types.
TYPE_A, TYPE_AAAA = 1, 28
_INTERNET = 1
_HEADER = struct.Struct("!HHHHHH")
#: Bits of the header's flags: QR, RD, RA and the four bits of OPCODE, which are 0 in a query.
_IS_ANSWER, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080
_OPERATION = 0x7800
#: Maximum number of addresses in one answer.
_MOST_ADDRESSES = 16
_TTL_S = 30


@dataclass(frozen=True)
class Question:
    """A query for the records of one name.

    Parameters
    ----------
    identifier, flags
        The header's fields; the answer repeats the identifier.
    type
        The record type, such as `TYPE_A`.
    raw
        The question section as received, which the answer repeats.
    """

    identifier: int
    flags: int
    name: str
    type: int
    raw: bytes


def parse_question(data: bytes) -> Question:
    """Parse a datagram with one question; additional records, such as those of EDNS, are ignored.

    Raises
    ------
    ValueError
        The datagram is not a query for one name of the class Internet.
    """
    if len(data) < _HEADER.size:
        raise ValueError("shorter than a header")
    identifier, flags, questions, *_ = _HEADER.unpack_from(data)
    if flags & (_IS_ANSWER | _OPERATION) or questions != 1:
        raise ValueError("not one question")
    labels: list[str] = []
    offset = _HEADER.size
    while True:
        if offset >= len(data):
            raise ValueError("the name has no end")
        length = data[offset]
        if length == 0:
            break
        # A larger length is a compression pointer, and nothing precedes the question that it could point to.
        if length > 63 or offset + 1 + length > len(data) or len(labels) > 127:
            raise ValueError("a label is too long")
        labels.append(data[offset + 1 : offset + 1 + length].decode("ascii"))
        offset += 1 + length
    if offset + 5 > len(data):
        raise ValueError("the question has no type")
    kind, network = struct.unpack_from("!HH", data, offset + 1)
    name = ".".join(labels)
    if network != _INTERNET or not name.isprintable() or len(name) > 253:
        raise ValueError("not a name of the Internet")
    return Question(identifier, flags, name.lower(), kind, data[_HEADER.size : offset + 5])


def answer(question: Question, code: int, addresses: tuple[str, ...] = ()) -> bytes:
    """Return the datagram that answers a query, with a response code and the IPv4 addresses of the name."""
    shown = [IPv4Address(each) for each in addresses if "." in each][:_MOST_ADDRESSES]
    records = shown if question.type == TYPE_A and code == OK else []
    flags = _IS_ANSWER | (question.flags & _RECURSION_DESIRED) | _RECURSION_AVAILABLE | code
    head = _HEADER.pack(question.identifier, flags, 1, len(records), 0, 0)
    # Each record's name is a pointer to the name in the question, at offset 12.
    body = b"".join(
        struct.pack("!HHHIH", 0xC00C, TYPE_A, _INTERNET, _TTL_S, 4) + each.packed for each in records
    )
    return head + question.raw + body
