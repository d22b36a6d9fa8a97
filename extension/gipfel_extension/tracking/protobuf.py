"""Fields of a protobuf message (its wire format), without a schema.

Source: protobuf.dev, "Encoding". Groups, which are obsolete, are not read.
"""

from collections.abc import Iterator

_MAX_VARINT_BYTES = 10


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type (0, 1, 2 or 5) and value of each field: an integer, or the bytes of the others.

    Raises
    ------
    ValueError
        The message is cut off or is not in this format.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = varint(message, position)
        kind = key & 7
        if kind == 0:
            value, position = varint(message, position)
            yield key >> 3, kind, value
            continue
        if kind == 2:
            length, position = varint(message, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"there is no wire type {kind}")
        if position + length > end:
            raise ValueError("a field is cut off")
        yield key >> 3, kind, message[position : position + length]
        position += length


def signed(value: int) -> int:
    """Return an int64 from the unsigned integer of its varint."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned integer at a position, and where it ends; raise ValueError if it is cut off."""
    result = shift = 0
    for offset in range(_MAX_VARINT_BYTES):
        if position + offset >= len(message):
            break
        byte = message[position + offset]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position + offset + 1
        shift += 7
    raise ValueError("an integer is cut off or too long")
