"""What sandboxes with the network `allowlist` connect to."""

from __future__ import annotations

from dataclasses import dataclass
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
    missed: int = 0
