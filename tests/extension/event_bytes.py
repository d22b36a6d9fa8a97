"""Independent writer of TensorBoard event files: frames, checksums and protobuf by hand."""

import struct


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    header = struct.pack("<Q", len(data))
    return header + masked(header) + data + masked(data)


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(step: int, time_s: float, *values: bytes) -> bytes:
    """An Event with values of :func:`simple` or others."""
    head = b"\x09" + struct.pack("<d", time_s) + (b"\x10" + varint(step) if step else b"")
    return head + part(5, b"".join(part(1, value) for value in values))


def simple(tag: str, value: float) -> bytes:
    return part(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
