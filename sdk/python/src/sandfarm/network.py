"""What sandboxes with the network `allowlist` connect to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from . import _decode as d
from .models import NEVER


@dataclass(frozen=True)
class EgressEntry:
    """A connection, or a request over plain HTTP, that a sandbox asked for.

    Attributes:
        id: pass it as `after` to read what follows.
        at: when the connection was asked for (UTC).
        host: the host that was asked for; code in the sandbox chooses it.
        port: its port; 0: none.
        method: `CONNECT` for HTTPS, or the method of a request over plain HTTP.
        verdict: `allowed`, `denied` (by a rule or a limit) or `failed` (not reached, or broken).
        reason: why it was denied or failed; empty otherwise.
        sent: bytes to the host.
        received: bytes from the host.
        duration_ms: how long it lasted.
        secrets: names of the secrets that were added to the request.
        missed: connections before this one that are not in the log.
    """

    id: str = ""
    at: datetime = d.field(d.timestamp, default=NEVER)
    host: str = ""
    port: int = 0
    method: str = ""
    verdict: str = ""
    reason: str = ""
    sent: int = 0
    received: int = 0
    duration_ms: int = 0
    secrets: tuple[str, ...] = d.field(tuple, default=())
    missed: int = 0


@dataclass(frozen=True)
class Secret:
    """A header that the farm adds to the HTTPS requests of a sandbox for one host. Code in the sandbox never sees its value.

    Attributes:
        host: one exact host name, which `allow_hosts` must allow; the port is 443.
        header: its name, and what stands before the value if anything does: `X-Api-Key`, or `Authorization: Bearer`.
        value: at least 8 characters; not in `repr`.
    """

    host: str
    header: str
    value: str = field(repr=False)
