"""Server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

MAX_EVENT_BYTES = 32 << 20


@dataclass(frozen=True)
class Frame:
    """One event: its id, its name and its data."""

    id: str
    name: str
    data: str


class Parser:
    """Splits a stream of bytes into events. An incomplete last event is dropped, as the format requires.

    Attributes:
        last: id of the last event.
    """

    def __init__(self, last: str = "") -> None:
        self.last = last
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    @property
    def partial(self) -> bool:
        """Whether an event has begun and is not complete."""
        return bool(self._rest or self._data)

    def feed(self, chunk: bytes) -> list[Frame]:
        """Adds bytes and returns the events that are complete with them.

        Raises:
            ValueError: an event is longer than 32 MiB.
        """
        out: list[Frame] = []
        *lines, self._rest = (self._rest + chunk).split(b"\n") if b"\n" in chunk else [self._rest + chunk]
        for line in lines:
            self._line(line.rstrip(b"\r").decode("utf-8", "replace"), out)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError("an event is longer than 32 MiB")
        return out

    def _line(self, line: str, out: list[Frame]) -> None:
        if not line:
            if self._data:
                out.append(Frame(self.last, self._name, "\n".join(self._data)))
            self._name, self._data, self._size = "", [], 0
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id" and "\0" not in value:
            self.last = value
        elif field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
            self._size += len(value)


async def frames(chunks: AsyncIterator[bytes], last: str = "") -> AsyncIterator[Frame | None]:
    """The events of a body; None for each heartbeat."""
    parser = Parser(last)
    async for chunk in chunks:
        found = parser.feed(chunk)
        for frame in found:
            yield frame
        if not found and not parser.partial:
            yield None
