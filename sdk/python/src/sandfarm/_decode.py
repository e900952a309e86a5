"""From the farm's JSON to dataclasses, leniently: unknown fields are left out, missing ones get their default."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

T = TypeVar("T")

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?(Z|z|[+-]\d\d:\d\d)?")


def by(convert: Callable[[Any], Any], **kwargs: Any) -> Any:
    """A dataclass field whose JSON is read by `convert`."""
    return dataclasses.field(metadata={"by": convert}, **kwargs)


def build(cls: type[T], data: Any) -> T:
    """Makes a dataclass of a JSON object."""
    given: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        value = given.get(field.name)
        if value is None or not field.init:
            continue
        convert = field.metadata.get("by")
        values[field.name] = convert(value) if convert else value
    return cls(**values)


def one(cls: type[T]) -> Callable[[Any], T]:
    """Reads one object."""
    return lambda data: build(cls, data)


def many(cls: type[T]) -> Callable[[Any], tuple[T, ...]]:
    """Reads a list of objects."""
    return lambda data: tuple(build(cls, item) for item in data or ())


def time(text: Any) -> datetime:
    """Reads a time of RFC 3339; its nanoseconds are cut to microseconds.

    Raises:
        ValueError: it is none.
    """
    found = _TIME.fullmatch(str(text))
    if not found:
        raise ValueError(f"{text!r} is not a time of RFC 3339")
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    micro = (fraction or ".0")[1:7].ljust(6, "0")
    return datetime.fromisoformat(f"{day}T{clock}.{micro}{zone}").astimezone(timezone.utc)
