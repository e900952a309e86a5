"""asyncio: every feature once, cancellation, concurrency, and that both variants have the same methods."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from pathlib import Path

import pytest

import sandfarm
from proxy import Proxy
from sandfarm import AsyncClient, AsyncSandbox, Client, CodeError, NotFoundError, Sandbox, UnavailableError, WaitTimeout


def test_every_feature_once(tmp_path: Path) -> None:
    async def program() -> None:
        async with AsyncSandbox(packages="humanize", ttl=300, labels={"made-by": "sdk-tests"}) as box:
            pieces: list[str] = []

            async def stdout(text: str) -> None:
                await asyncio.sleep(0)
                pieces.append(text)

            result = await box.run(
                "import humanize\nprint(humanize.intcomma(1234))\nopen('o.txt', 'w').write('x'); 7", on_stdout=stdout
            )
            assert "".join(pieces) == result.stdout == "1,234\n"
            assert result.results[0].text == "7"
            with pytest.raises(CodeError):
                await box.run("1/0", check=True)
            assert (await box.bash("echo hi")).stdout == "hi\n"
            job = await box.submit("print('later')")
            assert (await box.wait(job)).result.stdout == "later\n"
            assert [e.text async for e in box.events(job) if e.name == "stdout"] == ["later\n"]
            assert (await box.files.write("a/b.txt", "text")).size == 4
            assert await box.files.read_text("a/b.txt") == "text"
            (tmp_path / "up.bin").write_bytes(b"12")
            assert (await box.files.upload(tmp_path / "up.bin"))[0].size == 2
            assert (await box.files.download("up.bin", tmp_path / "down.bin")).read_bytes() == b"12"
            assert not await box.files.exists("nothing")
            await box.files.remove("a")
            with pytest.raises(NotFoundError):
                await box.files.read("a/b.txt")
            assert (await box.packages.status("humanize")).installed
            assert (await box.packages.install("six")).ok
            artifact = next(a for a in await box.artifacts.list() if a.path == "o.txt")
            assert await box.artifacts.read(artifact) == b"x"
            assert (await box.artifacts.save(artifact, tmp_path / "o.txt")).read_text() == "x"
            assert (await box.languages())[:1] == ("python",)
            client = box.client
            assert box.id in [info.id async for info in client.sandboxes(state="ready,busy")]
            assert (await client.limits())["wait_max_seconds"] == 60
        with Client() as blocking:
            assert not blocking.info(box.id).open

    asyncio.run(program())


def test_canceling_a_task_cancels_its_job(shared: Sandbox) -> None:
    async def program() -> None:
        async with AsyncClient() as client:
            box = client.sandbox(shared.id)
            up = asyncio.Event()
            for stdout in (lambda _: up.set(), None):  # streaming, and waiting
                task = asyncio.create_task(box.run("print('up', flush=True)\nimport time\ntime.sleep(600)", on_stdout=stdout))
                if stdout:
                    await up.wait()
                while not [job async for job in box.jobs(state="running")]:
                    await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                newest = await anext_of(box.jobs())
                assert (await client.wait(newest, timeout=60)).state == "canceled"
            with pytest.raises(WaitTimeout) as raised:
                await box.run("import time; time.sleep(600)", wait_timeout=0.5)
            assert not (await client.job(raised.value.job.id)).final
            await client.cancel(raised.value.job)
            assert (await client.wait(raised.value.job, timeout=60)).state == "canceled"
            assert (await box.run("'usable'")).results[0].text == "'usable'"

    asyncio.run(program())


async def anext_of(jobs: object) -> sandfarm.Job:
    async for job in jobs:  # type: ignore[attr-defined]
        assert isinstance(job, sandfarm.Job)
        return job
    raise AssertionError("there is no job")


def test_many_tasks_share_a_client(shared: Sandbox) -> None:
    async def program() -> None:
        async with AsyncClient() as client:
            box = client.sandbox(shared.id)
            runs = [box.run(f"print({n})", on_stdout=(lambda _: None) if n % 2 else None) for n in range(20)]
            results = await asyncio.gather(*runs)
            assert [r.stdout for r in results] == [f"{n}\n" for n in range(20)]

    asyncio.run(program())


def test_a_broken_connection_and_a_farm_that_is_down(shared: Sandbox) -> None:
    async def program() -> None:
        with Proxy(Client().url) as proxy:
            async with AsyncClient(proxy.url) as client:
                out: list[str] = []

                def stdout(text: str) -> None:
                    out.append(text)
                    if len(out) == 2:
                        proxy.cut()

                code = "import time\nfor n in range(6): print(n, flush=True); time.sleep(.05)"
                await client.sandbox(shared.id).run(code, on_stdout=stdout)
                assert "".join(out) == "0\n1\n2\n3\n4\n5\n"
        async with AsyncClient(proxy.url) as client:
            with pytest.raises(UnavailableError, match=r"no farm answers at .*SANDFARM_URL is right \(.+\)"):
                await client.limits()

    asyncio.run(program())


def test_a_client_in_several_event_loops(shared: Sandbox) -> None:
    client = AsyncClient()
    box = client.sandbox(shared.id)

    async def program(n: int) -> list[str]:
        results = await asyncio.gather(box.run(f"print({n})"), box.run(f"print({n} + 1)"))  # both need the lock of the sandbox
        if n != 1:
            await client.aclose()
        return [r.stdout for r in results]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the first loop leaves a connection open
        assert [asyncio.run(program(n)) for n in (1, 3, 5)] == [["1\n", "2\n"], ["3\n", "4\n"], ["5\n", "6\n"]]
        gc.collect()


def test_a_blocking_caller_cannot_pass_a_coroutine(shared: Sandbox) -> None:
    async def stdout(_: str) -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="Async"):
        shared.run("print(1)", on_stdout=stdout)


@pytest.mark.parametrize("name", ["Client", "Sandbox", "Files", "Artifacts", "Packages"])
def test_both_variants_have_the_same_methods_and_arguments(name: str) -> None:
    blocking, asynchronous = getattr(sandfarm, name), getattr(sandfarm, f"Async{name}")

    def methods(cls: type) -> dict[str, list[tuple[str, object, object]]]:
        return {
            method: [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
            for method, function in inspect.getmembers(cls, inspect.isfunction)
            if not method.startswith("_")
        }

    ours, theirs = methods(blocking), methods(asynchronous)
    if "aclose" in theirs:
        theirs["close"] = theirs.pop("aclose")
    assert ours == theirs
    if name == "Client":  # create takes the arguments of Sandbox
        there = [p for p in methods(blocking)["create"] if p[0] != "self"]
        of_box = [(p.name, p.kind, p.default) for p in inspect.signature(Sandbox).parameters.values()]
        assert there == [p for p in of_box if p[0] not in {"id", "client", "url", "api_key"}]
    assert all(inspect.getdoc(function) for _, function in inspect.getmembers(blocking, inspect.isfunction) if _[0] != "_")
