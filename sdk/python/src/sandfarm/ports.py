"""Ports of one sandbox."""

from __future__ import annotations

from ._io import finish
from .aio_ports import AsyncPort
from .live import PortLink


class Port:
    """One port of a sandbox, whether or not something listens there."""

    def __init__(self, port: AsyncPort) -> None:
        self._async = port

    def __repr__(self) -> str:
        return f"Port({self.number})"

    @property
    def number(self) -> int:
        """Its number."""
        return self._async.number

    @property
    def url(self) -> str:
        """Its address for requests with the farm's key. The sandbox must have been created.

        Raises:
            ValueError: it has not.
        """
        return self._async.url

    def link(self, *, expires: int | None = None, path_style: bool = False) -> PortLink:
        """Makes an address that needs no key: whoever has it uses this port.

        Args:
            expires: for how many seconds, 1 to 604800. Default: an hour.
            path_style: make it a path below the farm's address, `/p/...`. Browsers want a host of its own where there is
                one; programs may not resolve such a host, as `httpx` and `urllib` on Debian those below `localhost`.
        """
        return finish(self._async.link(expires=expires, path_style=path_style))
