"""The package has every field of the farm's OpenAPI document: one that is new there fails here until it is added."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import sandfarm
from conftest import Fake
from sandfarm import Client, Sandbox, models, results

Make = Callable[[Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], Any]]], Fake]

# Class and fields that it leaves out, for each schema of an answer.
ANSWERS: dict[str, tuple[type, set[str]]] = {
    "Artifact": (sandfarm.Artifact, set()),
    "AuditEntry": (sandfarm.AuditEntry, set()),
    "CodeError": (sandfarm.Raised, set()),
    "CommandOutcome": (sandfarm.CommandOutcome, set()),
    "CommandResult": (sandfarm.CommandResult, set()),
    "DroppedBytes": (results.DroppedBytes, set()),
    "EgressEntry": (sandfarm.EgressEntry, set()),
    "ExecuteResult": (sandfarm.ExecuteResult, set()),
    "FileEntry": (sandfarm.FileEntry, set()),
    "FSEntry": (sandfarm.FileInfo, set()),
    "FleetEvent": (sandfarm.FleetEvent, set()),
    "Image": (sandfarm.Image, set()),
    "InstallResult": (sandfarm.InstallResult, set()),
    "InstalledOne": (sandfarm.Installed, set()),
    "Job": (sandfarm.Job, {"links"}),  # the package knows the routes
    "JobError": (models.JobProblem, set()),
    "Key": (sandfarm.Key, set()),
    "Minute": (sandfarm.Minute, set()),
    "NewKey": (sandfarm.NewKey, set()),
    "NodeNeed": (sandfarm.NodeNeed, set()),
    "Package": (sandfarm.Package, set()),
    "Port": (sandfarm.PortInfo, set()),
    "PortLink": (sandfarm.PortLink, set()),
    "Process": (sandfarm.ProcessInfo, set()),
    "ProgressData": (sandfarm.Progress, set()),
    "Queue": (sandfarm.Queue, set()),
    "Resources": (sandfarm.Resources, set()),
    "RunningProcess": (sandfarm.RunningProcess, set()),
    "Sandbox": (sandfarm.SandboxInfo, set()),
    "TerminalSize": (sandfarm.TerminalSize, set()),
    "Timings": (models.Timings, set()),
    "Waiting": (models.Waiting, set()),
    "Truncated": (results.Truncated, set()),
    "Worker": (sandfarm.Worker, set()),
}

# Calls that use every argument, and fields that they cannot send, for each schema of a request.
Use = Callable[[Client, Sandbox], object]
BOX: dict[str, Any] = {"image": "i", "gpu": 1, "network": "allowlist", "packages": "six", "labels": {"a": "b"}}
BOX |= {"allow_hosts": ["h"], "secrets": {"KEY": sandfarm.Secret("h", "X-Key", "value")}}
BOX |= {"memory_mb": 1, "cpus": 1.0, "pids": 1, "disk_mb": 1, "runtime": "runsc"}
WORK: dict[str, Any] = {"timeout": 1, "env": {"A": "b"}, "auto_install": True, "on_output_limit": "stop"}
WORK |= {"callback_url": "http://x/"}
REQUESTS: dict[str, tuple[list[Use], set[str]]] = {
    "CreateRequest": (
        [lambda client, _: client.create(**BOX, name="n", env={"A": "b"}, ttl=1, idle=1, on_idle="hibernate")],
        {"callback_url"},  # the caller waits for it
    ),
    "ExecuteRequest": ([lambda _, box: box.submit("1", language="python", filename="f.py", context="c", **WORK)], set()),
    "CommandRequest": (
        [
            lambda _, box: box.submit_bash("ls", cwd="d", continue_on_error=True, background=True, **WORK),
            lambda _, box: box.submit_bash(["ls"]),
        ],
        set(),
    ),
    "KeyRequest": (
        [lambda client, _: client.create_key("acme", name="n", scopes=["read"], expires=60)],
        set(),
    ),
    "PackagesRequest": (
        [lambda _, box: box.packages.start("six", manager="pip", timeout=1, callback_url="http://x/")],
        set(),
    ),
    "PortLinkRequest": ([lambda _, box: box.port(80).link(expires=1, path_style=True)], set()),
    "ProcessRequest": (
        [
            lambda _, box: box.processes.start("ls", name="n", cwd="d", env={"A": "b"}, stdin=True, timeout=1, restart="never"),
            lambda _, box: box.processes.start(["ls"], pty=(80, 24), hangup=300),
        ],
        set(),
    ),
    "RunRequest": (
        [lambda client, _: client.run("1", **BOX, **WORK, language="python", filename="f.py", files={"a": "b"})],
        set(),
    ),
    "UpdateRequest": (
        [lambda _, box: box.update(name="n", ttl=1, idle=1, labels={"a": "b"}, allow_hosts=["h"], secrets={"KEY": "value"})],
        set(),
    ),
}


@pytest.fixture(scope="session")
def schemas(client: Client) -> dict[str, set[str]]:
    answer = httpx.get(f"{client.url}/openapi.json", headers={"Authorization": f"Bearer {client._async._http.settings.key}"})
    return {name: set(schema.get("properties", ())) for name, schema in answer.json()["components"]["schemas"].items()}


@pytest.mark.parametrize("schema", sorted(ANSWERS))
def test_answers(schemas: dict[str, set[str]], schema: str) -> None:
    cls, left_out = ANSWERS[schema]
    assert {field.name.rstrip("_") for field in dataclasses.fields(cls)} | left_out == schemas[schema]


@pytest.mark.parametrize("schema", sorted(REQUESTS))
def test_requests(schemas: dict[str, set[str]], schema: str, fake: Make) -> None:
    def farm(*_: object) -> tuple[int, dict[str, str], Any]:
        return (
            200,
            {},
            {
                "secret": "s",
                "url": "u",
                "id": "job_1",
                "kind": "run",
                "state": "completed",
                "sandbox_id": "sbx_1",
                "result": {},
            },
        )

    uses, left_out = REQUESTS[schema]
    served = fake(farm)
    with Client(served.url) as other:
        for use in uses:
            use(other, other.sandbox("sbx_1"))
    sent = {name for *_, body in served.seen for name in json.loads(body)}
    assert sent | left_out == schemas[schema]
