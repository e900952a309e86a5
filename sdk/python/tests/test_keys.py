"""Keys and the audit. The farm of the tests has no keys, and the first one would close it, so that a fake answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from conftest import Fake
from sandfarm import AsyncClient, Client, UnavailableError

Farm = Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], Any]]

KEY: dict[str, Any] = {
    "id": "key_1",
    "tenant": "acme",
    "name": "bot",
    "scopes": ["run"],
    "origin": "api",
    "created_at": "2026-11-22T10:00:00Z",
}
ENTRY: dict[str, Any] = {
    "id": "aud_1",
    "at": "2026-11-22T10:00:01Z",
    "tenant": "acme",
    "from": "10.0.0.1",
    "route": "POST /v1/run",
    "status": 202,
}


def farm(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], Any]:
    assert headers
    resource, _, query = path.partition("?")
    if method == "POST":
        return 201, {}, {"key": KEY | {"tenant": json.loads(body)["tenant"]}, "secret": "sf_secret"}
    if method == "DELETE":
        return 204, {}, b""
    items = [KEY] if resource == "/v1/keys" else [ENTRY]
    last = "cursor=" in query
    return 200, {}, {"items": items, "next_cursor": None if last else "next"}


def test_keys_and_audit(fake: Callable[[Farm], Fake]) -> None:
    served = fake(farm)
    with Client(served.url) as client:
        made = client.create_key("acme", name="bot", scopes=["run"], expires=60)
        assert (made.secret, made.key.tenant, made.key.scopes) == ("sf_secret", "acme", ("run",))
        assert "sf_secret" not in repr(made)
        assert made.key.expires_at is None
        found = list(client.keys(tenant="acme"))
        assert [key.id for key in found] == ["key_1", "key_1"]  # two pages
        assert found[0].created_at == datetime(2026, 11, 22, 10, tzinfo=timezone.utc)
        client.revoke_key(found[0])
        client.revoke_key("key_2")
        entries = list(client.audit(tenant="acme", created_after=datetime(2026, 11, 22, tzinfo=timezone.utc)))
        assert [(entry.from_, entry.status) for entry in entries] == [("10.0.0.1", 202)] * 2
    requests = [f"{method} {path}" for method, path, *_ in served.seen]
    assert requests == [
        "POST /v1/keys",
        "GET /v1/keys?limit=200&tenant=acme",
        "GET /v1/keys?limit=200&tenant=acme&cursor=next",
        "DELETE /v1/keys/key_1",
        "DELETE /v1/keys/key_2",
        "GET /v1/audit?limit=200&tenant=acme&created_after=2026-11-22T00%3A00%3A00%2B00%3A00",
        "GET /v1/audit?limit=200&tenant=acme&created_after=2026-11-22T00%3A00%3A00%2B00%3A00&cursor=next",
    ]


def test_keys_and_audit_in_asyncio(fake: Callable[[Farm], Fake]) -> None:
    served = fake(farm)

    async def work() -> list[str]:
        client = AsyncClient(served.url)
        made = await client.create_key("acme")
        keys, audit = client.keys(tenant="acme"), client.audit()
        found = [made.secret, *[key.id async for key in keys], *[entry.route async for entry in audit]]
        await client.revoke_key(made.key)
        await client.aclose()
        return found

    assert asyncio.run(work()) == ["sf_secret", "key_1", "key_1", "POST /v1/run", "POST /v1/run"]


def test_a_key_is_not_made_twice(fake: Callable[[Farm], Fake]) -> None:
    """A repeated request would leave a key that nobody knows."""
    served = fake(lambda *_: (503, {}, {"code": "unavailable", "detail": "no"}))
    with Client(served.url, retries=0) as client, pytest.raises(UnavailableError):
        client.create_key("acme")
    assert len(served.seen) == 1
    assert "idempotency-key" not in {name.lower() for name in served.seen[0][2]}


def test_the_key_of_a_file(fake: Callable[[Farm], Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def note(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], Any]:
        sent.append(headers.get("authorization", ""))
        return farm(method, path, headers, body)

    served, file = fake(note), tmp_path / "key"
    file.write_text("sf_file\n")
    file.chmod(0o640)
    monkeypatch.delenv("SANDFARM_API_KEY", raising=False)
    monkeypatch.setenv("SANDFARM_API_KEY_FILE", str(file))
    with pytest.raises(ValueError, match="run chmod 600"):
        Client(served.url)
    file.chmod(0o600)
    with Client(served.url) as client:
        client.revoke_key("key_1")
    monkeypatch.setenv("SANDFARM_API_KEY", "sf_variable")
    with Client(served.url) as client:
        client.revoke_key("key_1")
    with Client(served.url, "sf_given") as client:
        client.revoke_key("key_1")
    assert sent == ["Bearer sf_file", "Bearer sf_variable", "Bearer sf_given"]
