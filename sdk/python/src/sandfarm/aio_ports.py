"""Ports of one sandbox, for asyncio."""

from __future__ import annotations

from urllib.parse import quote

from . import _bodies
from . import _decode as d
from ._handle import Handle
from ._http import Call
from .live import PortInfo, PortLink


class AsyncPort:
    """One port of a sandbox. Every method is the awaitable form of the one in `Port`.

    Attributes:
        number: of the port.
    """

    def __init__(self, handle: Handle, number: int) -> None:
        self._handle = handle
        self.number = number

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.number})"

    @property
    def url(self) -> str:
        """See `Port.url`."""
        if not self._handle.known_id:
            raise ValueError("the sandbox is not created yet: start it first")
        base = self._handle.http.settings.url
        return f"{base}/v1/sandboxes/{quote(self._handle.known_id, safe='')}/ports/{self.number}/"

    async def link(self, *, expires: int | None = None, path_style: bool = False) -> PortLink:
        """See `Port.link`."""
        body = _bodies.compact(port=self.number, expires_seconds=expires, path_style=path_style or None)
        return d.build(
            PortLink, await self._handle.http.json(Call("POST", await self._handle.path("port-links"), body=body), "url")
        )


async def ports(handle: Handle) -> list[PortInfo]:
    """The ports on which programs of a sandbox listen."""
    return list(d.tuple_of(PortInfo)((await handle.http.json(Call("GET", await handle.path("ports")), "items"))["items"]))
