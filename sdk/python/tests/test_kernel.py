"""The kernel for the Jupyter of this machine, on a farm with keys, and its errors. Clients of Jupyter test the rest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from conftest import Fake
from sandfarm.kernel import decode, encode

Farm = Callable[[str, str, dict[str, str], bytes], tuple[int, dict[str, str], Any]]

COMMAND = [sys.executable, "-m", "sandfarm.kernel", "-f"]
CHANNELS = ("shell", "control", "stdin", "iopub", "hb")


def test_a_message_is_laid_out_as_the_farm_reads_it() -> None:
    data = encode("shell", [b"{}", b"", b"\x00"])
    assert data[:48] == b"".join(number.to_bytes(8, "little") for number in (5, 48, 53, 55, 55, 56))
    assert decode(data) == ("shell", [b"{}", b"", b"\x00"])


def test_a_kernel_imports_nothing_of_the_notebooks_folder(tmp_path: Path) -> None:
    verb = Path(__file__).parents[3] / "cmd/sandfarm/internal/verbs/kernel.go"
    start = re.search(r'^const closedPath = "(.+)"$', verb.read_text(), re.MULTILINE)
    assert start
    (tmp_path / "httpx.py").write_text("raise SystemExit('code of the folder ran')")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, "-c", start[1] + "import sandfarm.kernel"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_kernel_sends_the_key_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text(os.environ.get("SANDFARM_API_KEY", "") + "\n")
    key.chmod(0o600)
    monkeypatch.delenv("SANDFARM_API_KEY", raising=False)
    monkeypatch.setenv("SANDFARM_API_KEY_FILE", str(key))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    spec = tmp_path / "kernels" / "farm" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": [*COMMAND, "{connection_file}"], "display_name": "farm", "language": "python"}))
    manager, client = start_new_kernel(kernel_name="farm", startup_timeout=120)
    try:
        texts: list[str] = []
        client.execute_interactive(
            "print(6 * 7)", timeout=120, output_hook=lambda message: texts.append(message["content"].get("text", ""))
        )
        assert "".join(texts) == "42\n"
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def refuse(*_: object) -> tuple[int, dict[str, str], Any]:
    return 401, {}, {"code": "unauthorized", "detail": "the API key is wrong"}


def test_a_kernel_that_cannot_run_says_why(tmp_path: Path, fake: Callable[[Farm], Fake]) -> None:
    connection, other, key = tmp_path / "kernel.json", tmp_path / "other.json", tmp_path / "key"
    ports = {f"{channel}_port": number for number, channel in enumerate(CHANNELS, 1)}
    connection.write_text(json.dumps({"transport": "ipc", "ip": str(tmp_path / "s"), "key": "k", **ports}))
    other.write_text("[]")
    key.write_text("secret")
    key.chmod(0o644)
    refusing = fake(refuse).url
    cases = (
        ([tmp_path / "none.json"], "No such file"),
        ([other], "is no connection file of Jupyter"),
        ([connection, "--url", refusing], "the API key is wrong"),
        ([connection, "--url", "http://127.0.0.1:9"], "no farm answers at http://127.0.0.1:9"),
        ([connection, "--url", refusing, "--key-file", key], "run chmod 600 on it"),
    )
    for arguments, want in cases:
        done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 1, done
        assert done.stderr.startswith("sandfarm: ")
        assert want in done.stderr
        assert done.stderr.count("\n") == 1
