"""Jobs: start, poll, wait, follow, cancel."""

from __future__ import annotations

import pytest

from sandfarm import (
    Client,
    ConflictError,
    ExecuteResult,
    JobCanceled,
    JobError,
    NotFoundError,
    Sandbox,
    SandfarmError,
    WaitTimeout,
)

FOREVER = "print('up', flush=True)\nimport time\ntime.sleep(600)"


def test_submit_poll_wait(box: Sandbox) -> None:
    job = box.submit("print('done')")
    assert job.id.startswith("job_")
    done = box.wait(job)
    assert done.final
    assert done.state == "completed"
    assert isinstance(done.result, ExecuteResult)
    assert done.result.stdout == "done\n"
    assert box.poll(job.id) == done
    assert done.timings.run_ms > 0
    assert job.id in {found.id for found in box.jobs(state="completed")}
    assert [found.id for found in box.client.jobs(sandbox_id=box.id, state="completed,failed", kind="execute,run")][:1] == [
        job.id
    ]
    assert done.request["code"] == "print('done')"


def test_events_replay_from_any_point(box: Sandbox) -> None:
    job = box.submit("for n in range(3): print(n, flush=True)")
    events = list(box.events(job))
    assert "".join(e.text for e in events if e.name == "stdout") == "0\n1\n2\n"
    assert events[-1].final
    assert [e.id for e in box.events(job, after=events[1].id)] == [e.id for e in events[2:]]
    first = next(box.events(job))  # an abandoned iterator returns its connection
    assert first == events[0]
    with pytest.raises(NotFoundError):
        next(box.client.events("job_nowhere"))


def test_a_wait_timeout_does_not_end_the_job_and_cancel_does(box: Sandbox) -> None:
    with pytest.raises(WaitTimeout, match="after 1 s") as raised:
        box.run(FOREVER, wait_timeout=1)
    job = raised.value.job
    assert job.state in {"queued", "running"}
    assert isinstance(raised.value, TimeoutError)
    with pytest.raises(WaitTimeout):
        box.wait(job, timeout=0.2)
    assert next(event.text for event in box.events(job) if event.name == "stdout") == "up\n"
    with pytest.raises(WaitTimeout):
        box.run(FOREVER, wait_timeout=1, on_stdout=lambda _: None)
    for running in list(box.jobs()):
        if not running.final:
            box.cancel(running)
            assert box.wait(running, timeout=60).state == "canceled"
    assert box.wait(job, timeout=60).result.stdout == "up\n"
    assert box.cancel(job).state == "canceled", "canceling again changes nothing"


def test_a_canceled_job_raises_in_its_waiter(box: Sandbox) -> None:
    def cancel(_: str) -> None:
        box.cancel(next(job for job in box.jobs() if not job.final))

    with pytest.raises(JobCanceled) as raised:
        box.run(FOREVER, on_stdout=cancel)
    assert raised.value.result.stdout == "up\n"
    assert raised.value.code == "conflict"
    assert "conflict" not in str(raised.value)


def test_closing_a_sandbox_cancels_its_jobs(client: Client) -> None:
    box = client.create(ttl=300)
    with pytest.raises((JobError, ConflictError)):
        box.run(FOREVER, on_stdout=lambda _: client.sandbox(box.id).close())
    assert not box.info().open


def test_the_next_job_does_not_wait_for_a_background_command(box: Sandbox) -> None:
    job = box.submit_bash("echo served; sleep 600", background=True)
    assert box.run("'meanwhile'").results[0].text == "'meanwhile'"
    assert box.poll(job).state == "running"
    box.cancel(job)
    assert box.wait(job, timeout=60).state == "canceled"


def test_an_idempotency_key_runs_once(box: Sandbox, unique: str) -> None:
    box.run("count = 0")
    for _ in range(2):
        assert box.run("count += 1; print(count)", idempotency_key=unique).stdout == "1\n"
    with pytest.raises(ConflictError):
        box.run("count += 2", idempotency_key=unique)


def test_batch(client: Client, box: Sandbox) -> None:
    good, bad = client.batch(
        [
            {"kind": "execute", "sandbox_id": box.id, "code": "6 * 7"},
            {"kind": "execute", "sandbox_id": "sbx_nowhere", "code": "1"},
        ]
    )
    assert not isinstance(good, Exception)
    assert client.wait(good).result.results[0].text == "42"
    assert isinstance(bad, NotFoundError)


def test_every_error_is_a_sandfarm_error() -> None:
    import sandfarm

    kinds = [kind for kind in vars(sandfarm).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) == 19
    assert all(issubclass(kind, SandfarmError) for kind in kinds)
    codes = {"invalid", "unauthorized", "not_found", "conflict", "too_large", "exhausted", "unavailable", "internal"}
    assert {kind.code for kind in kinds} - {""} == codes  # type: ignore[attr-defined]
