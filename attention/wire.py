"""Requests and answers as bytes, read back by type: only what the reader expects is built, and nothing is unpickled.

A message: ``MAGIC``, the header's length, a JSON header, then the arrays as they lie in memory. The reader says which
type it expects and every field is checked against its annotation, so bytes from a network can at worst be refused.
"""

from __future__ import annotations

import json
import struct
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from attention.errors import UserError

MAGIC = b"HSW1"
ALIGN = 64
HEADER_BYTES = 64 * 2**20
QUESTION_BYTES = 2**20
# What results hold, little-endian. Anything else, Python objects above all, is refused.
DTYPES = {"<f4": np.float32, "<f8": np.float64, "<i8": np.int64, "|b1": np.bool_}
PLAIN: tuple[type, ...] = (bool, int, float, str)

# Frames of an answer: one letter, the payload's length, the payload.
FRAME = struct.Struct("<cQ")
SHARE = struct.Struct("<d")
PROGRESS, ANSWER, MISTAKE, FAULT = b"p", b"a", b"e", b"f"
_LENGTH = struct.Struct("<I")


class WireError(Exception):
    """Bytes that are not the message expected."""


def encode(value: Any) -> list[bytes | np.ndarray]:
    """A value as the parts of one message; arrays are not copied.

    Dataclasses, tuples, mappings with text keys, arrays of ``DTYPES``, numbers, text and None. Raises WireError else.
    """
    arrays: list[np.ndarray] = []
    tree = _flatten(value, arrays)
    places, at = [], 0
    for array in arrays:
        places.append([array.dtype.str, list(array.shape), at])
        at = _aligned(at + array.nbytes)
    header = json.dumps({"value": tree, "arrays": places}, separators=(",", ":")).encode()
    header += b" " * (_aligned(8 + len(header)) - 8 - len(header))
    parts: list[bytes | np.ndarray] = [MAGIC + _LENGTH.pack(len(header)) + header]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8), bytes(_aligned(array.nbytes) - array.nbytes)]
    return [part for part in parts if len(part)]


def to_bytes(value: Any) -> bytes:
    """One message in one piece."""
    return b"".join(map(bytes, encode(value)))


def decode(kind: Any, data: bytes | bytearray) -> Any:
    """The value of type ``kind`` in a message; its arrays are read-only views of ``data``.

    ``kind`` is a dataclass or any annotation such fields carry. Raises WireError for bytes that hold no such value.
    """
    try:
        header, body = _opened(data)
        arrays = [_array(place, data, body) for place in header["arrays"]]
        return _build(kind, header["value"], arrays)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError, struct.error) as error:
        raise WireError(f"not a message of this kind ({type(error).__name__})") from None


def mistake_to_bytes(error: UserError) -> bytes:
    """A UserError's three sentences."""
    return json.dumps([error.wrong, error.allowed, error.next_step]).encode()


def mistake_from_bytes(data: bytes | bytearray) -> UserError:
    """The reverse of ``mistake_to_bytes``. Raises WireError."""
    try:
        parts = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError("not a message about a mistake") from None
    if not isinstance(parts, list) or len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise WireError("not a message about a mistake")
    return UserError(*parts)


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _flatten(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.str not in DTYPES:
            raise WireError(f"arrays of {value.dtype} are not sent")
        arrays.append(np.ascontiguousarray(value))
        return {"array": len(arrays) - 1}
    if is_dataclass(value):
        named = {one.name: _flatten(getattr(value, one.name), arrays) for one in fields(value)}
        return {"is": type(value).__name__, "of": named}
    if isinstance(value, Mapping):
        return {str(name): _flatten(item, arrays) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_flatten(item, arrays) for item in value]
    raise WireError(f"a {type(value).__name__} is not sent")


def _opened(data: bytes | bytearray) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin."""
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    body = len(MAGIC) + _LENGTH.size + length
    if data[: len(MAGIC)] != MAGIC or length > HEADER_BYTES or body > len(data):
        raise WireError("not a message")
    header = json.loads(bytes(memoryview(data)[body - length : body]))
    if not isinstance(header, dict):
        raise WireError("not a message")
    return header, body


def _array(place: Any, data: bytes | bytearray, body: int) -> np.ndarray:
    code, shape, at = place
    sizes = [size for size in [*shape, at] if type(size) is not int or size < 0]
    if code not in DTYPES or sizes:
        raise WireError("not an array that is sent")
    count = 1
    for size in shape:
        count *= size
    array = np.frombuffer(data, dtype=DTYPES[code], count=count, offset=body + at) if count else np.empty(0, code)
    if code == "|b1" and count and array.view(np.uint8).max() > 1:
        raise WireError("neither true nor false")
    array = array.reshape(shape)
    array.setflags(write=False)
    return array


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _build(kind: Any, node: Any, arrays: list[np.ndarray]) -> Any:
    """The value of annotation ``kind`` in a JSON node. Goes as deep as the annotation, however deep the node is."""
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(options, node, arrays)
    if np.ndarray in (kind, origin):
        return _expected_array(options, node, arrays)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind, node, arrays)
    if origin is tuple:
        return _tuple(options, node, arrays)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _require(isinstance(node, dict))
        return {name: _build(options[1], item, arrays) for name, item in node.items()}
    _require(_is_plain(kind, node))
    return node


def _is_plain(kind: Any, node: Any) -> bool:
    """Whether a JSON value is the plain value expected; a whole number will do for a float."""
    if get_origin(kind) is Literal:
        return any(node == option and type(node) is type(option) for option in get_args(kind))
    if kind in (None, type(None)):
        return node is None
    return kind in PLAIN and (type(node) is kind or (kind is float and type(node) is int))


def _require(holds: bool) -> None:
    if not holds:
        raise WireError("a value of another type than expected")


def _one_of(options: tuple[Any, ...], node: Any, arrays: list[np.ndarray]) -> Any:
    for option in options:
        try:
            return _build(option, node, arrays)
        except WireError:
            continue
    raise WireError("none of the types expected")


def _expected_array(options: tuple[Any, ...], node: Any, arrays: list[np.ndarray]) -> np.ndarray:
    _require(isinstance(node, dict) and set(node) == {"array"} and type(node["array"]) is int and node["array"] >= 0)
    found = arrays[node["array"]]
    wanted = get_args(options[1]) if len(options) == 2 else ()
    _require(not wanted or found.dtype == wanted[0])
    return found


def _dataclass(kind: type, node: Any, arrays: list[np.ndarray]) -> Any:
    hints = _hints(kind)
    _require(isinstance(node, dict) and set(node) == {"is", "of"} and node["is"] == kind.__name__)
    _require(isinstance(node["of"], dict) and set(node["of"]) == set(hints))
    return kind(**{name: _build(hint, node["of"][name], arrays) for name, hint in hints.items()})


def _tuple(options: tuple[Any, ...], node: Any, arrays: list[np.ndarray]) -> tuple[Any, ...]:
    _require(isinstance(node, list))
    if len(options) == 2 and options[1] is Ellipsis:
        return tuple(_build(options[0], item, arrays) for item in node)
    _require(len(node) == len(options))
    return tuple(_build(option, item, arrays) for option, item in zip(options, node, strict=True))


@dataclass(frozen=True)
class Nothing:
    """A request without any question in it."""

    @property
    def key(self) -> str:
        """Always the same."""
        return "{}"
