"""Runs the guide, the examples and the notebooks."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "sdk-python.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {
    "first.py": "'1 year, 1 month'\nanswer.txt 42\n",
    "stream.py": None,  # the number of steps depends on the time
    "many.py": "550 primes below 4000\n",
    "agent_loop.py": "attempt 1: ModuleNotFoundError: No module named 'statistcs'\nattempt 2: 2\n",
}


def test_the_guide_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [(match[1], match[2]) for match in BLOCK.finditer(GUIDE.read_text(encoding="utf-8"))]
    assert {kind for kind, _ in blocks} == {"sh", "python", "text"}
    assert [kind for kind, _ in blocks].count("sh") == 1, "shell blocks are not run"
    names: dict[str, Any] = {"__name__": "guide"}
    printed = None
    for number, (kind, text) in enumerate(blocks):
        if kind == "python":
            assert not printed, f"block {number - 1} prints {printed!r}, but the guide does not show it"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, f"sdk-python.md, block {number}", "exec"), names)
            printed = out.getvalue()
        elif kind == "text":
            assert printed == text
            printed = None
    assert not printed


def test_the_readmes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("a\n1\n")
    for readme in (ROOT / "sdk" / "python" / "README.md", ROOT / "README.md"):
        blocks = [match[2] for match in BLOCK.finditer(readme.read_text(encoding="utf-8")) if match[1] == "python"]
        assert blocks, readme
        for block in blocks:
            exec(compile(block, str(readme), "exec"), {"__name__": "readme"})
    assert (tmp_path / "out.txt").read_text() == "done"


def test_every_example_is_tested() -> None:
    assert {path.name for path in (ROOT / "examples" / "python").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "python" / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    if EXAMPLES[name] is not None:
        assert (done.stdout, done.stderr) == (EXAMPLES[name], "")
    else:
        assert done.stdout.startswith("step 0\n")
        assert f"stopped after {done.stdout.count('step')} steps" in done.stderr


def kinds(notebook: Any) -> list[list[str]]:
    """The best format of each output of each cell. Consecutive pieces of text count as one."""
    shown = [[best(output) for output in cell.get("outputs", ())] for cell in notebook.cells if cell.cell_type == "code"]
    return [[kind for at, kind in enumerate(cell) if kind != "stream" or cell[at - 1 : at] != ["stream"]] for cell in shown]


def best(output: Any) -> str:
    mimes = set(output.get("data", ()))
    return next((mime for mime in ("image/png", "text/html", "text/plain") if mime in mimes), str(output.output_type))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook(path: Path, tmp_path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    stored = kinds(notebook)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert kinds(notebook) == stored, "the outputs are those stored in the notebook"
    assert any(shown for shown in stored)


def test_there_are_notebooks() -> None:
    assert len(list((ROOT / "docs" / "notebooks").glob("*.ipynb"))) >= 2
