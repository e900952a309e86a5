"""`sandfarm.compat.SandboxClient`, used as in the README of the original."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path

import pytest

from sandfarm import Client
from sandfarm.compat import SandboxClient


def test_the_session_of_the_readme(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    old = SandboxClient(client.url)
    sandbox_id = old.create_sandbox()
    assert sandbox_id is not None
    assert old.sandbox_id == sandbox_id
    assert (old.execute_code("print('Hello, Sandbox!')") or {})["stdout"] == "Hello, Sandbox!\n"
    installed = old.install_package("humanize")
    assert installed is not None
    assert installed["success"] is True
    made = old.execute_code(
        "import humanize, pandas as pd\n"
        "pd.DataFrame({'Name': ['John', 'Anna'], 'Age': [28, 34]}).to_csv('example_data.csv', index=False)\n"
        "print('CSV文件已创建')"
    )
    assert made is not None
    assert (made["stdout"], made["stderr"], made["error"] or "") == ("CSV文件已创建\n", "", "")
    files = old.list_files()
    assert files is not None
    csv_file = next(f for f in files if f["path"].endswith(".csv"))
    assert csv_file["size"] == len("Name,Age\nJohn,28\nAnna,34\n")
    assert old.download_file(csv_file["path"]) == "example_data.csv"
    assert Path("example_data.csv").read_text() == "Name,Age\nJohn,28\nAnna,34\n"
    assert old.download_file(csv_file["path"], "named.csv") == "named.csv"
    Path("test_upload.txt").write_text("This is a test file for upload.")
    assert old.upload_file("test_upload.txt") == "test_upload.txt"
    assert old.upload_file("test_upload.txt", "数据/up load.txt") == "数据/up load.txt"
    assert old.download_file("数据/up load.txt", "back.txt") == "back.txt"
    assert Path("back.txt").read_text() == "This is a test file for upload."
    assert sandbox_id in (old.list_all_sandboxes() or {})
    assert old.close_sandbox() is True
    assert old.sandbox_id is None
    assert sandbox_id not in (old.list_all_sandboxes() or {})
    printed = capsys.readouterr().out
    assert "Hello, Sandbox!" in printed
    assert sandbox_id in printed


def test_state_and_errors(client: Client, tmp_path: Path) -> None:
    old = SandboxClient(client.url, verbose=False)
    assert old.execute_code("1") is None
    assert old.list_files() is None
    assert old.close_sandbox() is False
    assert old.create_sandbox()
    old.execute_code("x = 41")
    assert (old.execute_code("print(x + 1)") or {})["stdout"] == "42\n"
    failed = old.execute_code("1 / 0") or {}
    assert failed["error"] == "ZeroDivisionError"
    assert "ZeroDivisionError: division by zero" in failed["traceback"]
    assert (old.install_package("no-such-package-anywhere") or {})["success"] is False
    assert old.download_file("nothing.txt", tmp_path / "nothing.txt") is None
    assert old.download_file("a/..\\up.bat") is None, "a name that leaves the directory on Windows"
    assert not list(tmp_path.iterdir())
    sandbox_id = old.sandbox_id
    del old
    gc.collect()
    assert not client.info(str(sandbox_id)).open, "it closes its sandbox when it is garbage-collected"


def test_its_methods_are_those_of_the_original() -> None:
    methods = {
        name: list(inspect.signature(function).parameters)[1:]
        for name, function in inspect.getmembers(SandboxClient, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods == {
        "create_sandbox": [],
        "execute_code": ["code"],
        "install_package": ["package_name"],
        "upload_file": ["file_path", "target_path"],
        "list_files": [],
        "download_file": ["file_path", "save_path"],
        "close_sandbox": [],
        "list_all_sandboxes": [],
    }
