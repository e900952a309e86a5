"""The control API: what makes, finds and ends sandboxes."""

import asyncio
import json
import os
import uuid
from datetime import datetime, timedelta, timezone

import e2b
import e2b.exceptions
import pytest
from e2b import AsyncSandbox, AuthenticationException, Sandbox, SandboxException, SandboxQuery, SandboxState
from e2b.api.client.api.sandboxes import get_sandboxes_sandbox_id_logs as old_logs
from e2b.api.client_sync import get_api_client
from e2b.connection_config import ConnectionConfig

# The SDK of a year ago has only the last of each.
SandboxNotFoundException = getattr(e2b, "SandboxNotFoundException", e2b.NotFoundException)
SandboxNotRunningException = getattr(e2b.exceptions, "SandboxNotRunningException", e2b.SandboxException)


def test_create_with_environment_and_metadata():
    name = uuid.uuid4().hex
    made = Sandbox.create("code-interpreter-v1", timeout=120, envs={"FRUIT": "apple"}, metadata={"name": name, "why": "a b&c=d/é"})
    try:
        assert made.commands.run("echo $FRUIT").stdout == "apple\n"
        info = made.get_info()
        assert info.metadata == {"name": name, "why": "a b&c=d/é"} and info.state == SandboxState.RUNNING
        left = info.end_at - datetime.now(timezone.utc)
        assert timedelta(seconds=60) < left <= timedelta(seconds=120)
        found = Sandbox.list(query=SandboxQuery(metadata={"name": name, "why": "a b&c=d/é"})).next_items()
        assert [s.sandbox_id for s in found] == [made.sandbox_id]
        assert Sandbox.list(query=SandboxQuery(metadata={"name": name, "why": "other"})).next_items() == []
        assert Sandbox.list(query=SandboxQuery(metadata={"name": name}, state=[SandboxState.PAUSED])).next_items() == []
    finally:
        assert made.kill()


def test_list_in_pages():
    name = uuid.uuid4().hex
    made = [Sandbox.create(timeout=60, metadata={"name": name}) for _ in range(3)]
    try:
        pages = Sandbox.list(query=SandboxQuery(metadata={"name": name}), limit=2)
        first = pages.next_items()
        assert pages.has_next and len(first) == 2
        second = pages.next_items()
        assert not pages.has_next
        assert [s.sandbox_id for s in first + second] == [s.sandbox_id for s in reversed(made)]
    finally:
        for s in made:
            s.kill()


def test_connect_and_timeout():
    made = Sandbox.create(timeout=60)
    try:
        made.files.write("kept", "x")
        again = Sandbox.connect(made.sandbox_id, timeout=600)
        assert again.files.read("kept") == "x"
        longer = again.get_info().end_at
        assert longer - datetime.now(timezone.utc) > timedelta(seconds=500)
        Sandbox.connect(made.sandbox_id, timeout=10)  # never shortens
        assert made.get_info().end_at == longer
        made.set_timeout(100)
        assert made.get_info().end_at < longer
    finally:
        made.kill()


def test_kill():
    made = Sandbox.create(timeout=60)
    assert made.is_running()
    running = made.commands.run("sleep 100", background=True)
    assert made.kill()
    assert not made.is_running()
    with pytest.raises(SandboxNotRunningException):
        running.wait()
    with pytest.raises(SandboxNotRunningException):
        made.commands.run("true")
    assert not made.kill()
    for call in (made.get_info, lambda: made.set_timeout(60), lambda: Sandbox.connect(made.sandbox_id)):
        with pytest.raises(SandboxNotFoundException):
            call()


def test_timeout_of_nothing_ends_it():
    made = Sandbox.create(timeout=60)
    made.set_timeout(0)
    assert not made.is_running()


def test_metrics(sandbox):
    now = sandbox.get_metrics()
    assert len(now) == 1 and now[0].mem_total >= now[0].mem_used > 0 and now[0].disk_total > 0 and now[0].cpu_count >= 1
    before = datetime.now(timezone.utc) - timedelta(hours=1)
    assert sandbox.get_metrics(start=before, end=before + timedelta(minutes=1)) == []


def test_logs():
    from e2b.api.client.api.sandboxes import get_v_2_sandboxes_sandbox_id_logs as logs  # LATER names this test

    made = Sandbox.create(timeout=60)
    made.commands.run("exit 0")
    client = get_api_client(ConnectionConfig())
    lines = logs.sync(made.sandbox_id, client=client).logs
    assert [line.message for line in lines if line.fields["logger"] == "process"] == ["The process started.", "The process ended."]
    assert lines[-1].level.value == "info" and lines[-1].fields["exit_code"] == "0"
    assert made.kill()
    assert any("create" in json.loads(line.line)["message"] for line in old_logs.sync(made.sandbox_id, client=client).logs)


def test_a_foreign_tenant_finds_nothing(sandbox):
    other = os.environ["OTHER_KEY"]
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id, api_key=other)
    assert not Sandbox.kill(sandbox.sandbox_id, api_key=other)
    assert sandbox.sandbox_id not in [s.sandbox_id for s in Sandbox.list(api_key=other).next_items()]


def test_errors():
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_0123")
    with pytest.raises(SandboxException, match="not offered"):
        Sandbox.create("no-such-template")
    with pytest.raises(SandboxException, match="timeout"):
        Sandbox.create(timeout=10**9)
    with pytest.raises(SandboxException, match="hibernate|store"):
        made = Sandbox.create(timeout=60)
        try:
            made.pause()
        finally:
            made.kill()


def test_async():
    async def body():
        made = await AsyncSandbox.create(timeout=120)
        try:
            await made.files.write("a", "b")
            many = await asyncio.gather(*(made.commands.run(f"echo {n}; cat a") for n in range(10)))
            assert [r.stdout for r in many] == [f"{n}\nb" for n in range(10)]
            events = []
            watch = await made.files.watch_dir(".", on_event=events.append)
            await made.files.write("new", "x")
            for _ in range(100):
                if any(e.name == "new" and e.type.value == "write" for e in events):
                    break
                await asyncio.sleep(0.05)
            assert events[0].name == "new" and events[0].type.value == "create", events
            await watch.stop()
        finally:
            await made.kill()

    asyncio.run(body())
