"""The messages of KEDA's service `externalscaler.ExternalScaler`, encoded as Protocol Buffers.

They have few fields, so they are written by hand: the package that generates them would be a dependency of its own.
Unknown fields are skipped, as the format requires.

ScaledObjectRef         1 name, 2 namespace, 3 scalerMetadata (a map: 1 key, 2 value)
IsActiveResponse        1 result
GetMetricSpecResponse   1 metricSpecs (1 metricName, 2 targetSize, 3 targetSizeFloat)
GetMetricsRequest       1 scaledObjectRef, 2 metricName
GetMetricsResponse      1 metricValues (1 metricName, 2 metricValue, 3 metricValueFloat)
"""

import struct
from collections.abc import Iterator, Mapping

from msgspec import Struct

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX = 10
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


class BadMessage(ValueError):
    """The bytes are not a message of this form."""


class ScaledObjectRef(Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    metadata: Mapping[str, str] = {}


class MetricsRequest(Struct, frozen=True):
    ref: ScaledObjectRef
    metric: str = ""


# -- reading ----------------------------------------------------------------------------------------------------------


def parse_ref(data: bytes) -> ScaledObjectRef:
    texts = {1: "", 2: ""}
    metadata: dict[str, str] = {}
    for number, value in read_fields(data):
        if number in texts:
            texts[number] = read_text(value)
        elif number == 3:
            entry = {key: read_text(text) for key, text in read_fields(read_bytes(value)) if key in (1, 2)}
            metadata[entry.get(1, "")] = entry.get(2, "")
    return ScaledObjectRef(texts[1], texts[2], metadata)


def parse_metrics_request(data: bytes) -> MetricsRequest:
    ref, metric = ScaledObjectRef(), ""
    for number, value in read_fields(data):
        if number == 1:
            ref = parse_ref(read_bytes(value))
        elif number == 2:
            metric = read_text(value)
    return MetricsRequest(ref, metric)


def parse_health_service(data: bytes) -> str:
    """HealthCheckRequest: 1 service."""
    return next((read_text(value) for number, value in read_fields(data) if number == 1), "")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = read_varint(data, at)
            yield number, value
            continue
        length, at = read_varint(data, at) if wire == BYTES else (FIXED_BYTES.get(wire, -1), at)
        if length < 0 or at + length > len(data):
            raise BadMessage(f"field {number} is cut off, or has the unknown wire type {wire}")
        yield number, data[at : at + length]
        at += length


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(VARINT_BYTES_MAX):
        if at + shift >= len(data):
            break
        byte = data[at + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise BadMessage("a number is cut off or too long")


def read_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise BadMessage("a number where a text or a message is expected")
    return value


def read_text(value: int | bytes) -> str:
    try:
        return read_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise BadMessage("a text is not UTF-8") from error


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_active(is_active: bool) -> bytes:
    """A false result is the default, which is not written."""
    return encode_number(1, 1) if is_active else b""


def encode_metric(name: str, value: int) -> bytes:
    """A response with one metric: `GetMetricSpecResponse` with its target, or `GetMetricsResponse` with its value. Both
    have the same numbers: the deprecated integer, and the float that present versions of KEDA read."""
    number = encode_number(2, value) if value else b""
    return encode_field(
        1, encode_field(1, name.encode()) + number + bytes([3 << 3 | FIXED64]) + struct.pack("<d", value)
    )


def encode_field(number: int, data: bytes) -> bytes:
    return encode_varint(number << 3 | BYTES) + encode_varint(len(data)) + data


def encode_number(number: int, value: int) -> bytes:
    return encode_varint(number << 3 | VARINT) + encode_varint(value)


def encode_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
