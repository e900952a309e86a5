"""Decodes the farm's JSON into dataclasses. Unknown fields are ignored, missing ones keep their default."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

T = TypeVar("T")

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?(Z|z|[+-]\d\d:\d\d)?")


def field(convert: Callable[[Any], Any], **kwargs: Any) -> Any:
    """Declares a dataclass field whose JSON value goes through `convert`."""
    return dataclasses.field(metadata={"convert": convert}, **kwargs)


def build(cls: type[T], data: Any) -> T:
    """Builds a dataclass from a JSON object. A field that would be a keyword of Python ends in an underscore."""
    given: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    values: dict[str, Any] = {}
    for declared in dataclasses.fields(cls):  # type: ignore[arg-type]
        value = given.get(declared.name.rstrip("_"))
        if value is None or not declared.init:
            continue
        convert = declared.metadata.get("convert")
        values[declared.name] = convert(value) if convert else value
    return cls(**values)


def object_of(cls: type[T]) -> Callable[[Any], T]:
    """Returns a converter for one JSON object."""
    return lambda data: build(cls, data)


def tuple_of(cls: type[T]) -> Callable[[Any], tuple[T, ...]]:
    """Returns a converter for a JSON array of objects."""
    return lambda data: tuple(build(cls, item) for item in data or ())


def timestamp(text: Any) -> datetime:
    """Parses an RFC 3339 timestamp. Nanoseconds are truncated to microseconds.

    Raises:
        ValueError: the text is not a timestamp.
    """
    found = _TIMESTAMP.fullmatch(str(text))
    if not found:
        raise ValueError(f"{text!r} is not an RFC 3339 timestamp")
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    micro = (fraction or ".0")[1:7].ljust(6, "0")
    return datetime.fromisoformat(f"{day}T{clock}.{micro}{zone}").astimezone(timezone.utc)
