"""Runs every recipe as its readers do, with a scripted model in place of a real one and a real farm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_model import RIGHT, WRONG, ScriptedModel

RECIPES = Path(__file__).resolve().parents[1]
PAGES = RECIPES.parents[2] / "docs" / "recipes"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = sorted(path.stem for path in RECIPES.glob("*.py"))


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel()
    yield made
    made.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe(name: str, model: ScriptedModel, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"  # anything that is not for this machine ends here
    env = {
        **{key: value for key, value in os.environ.items() if key.startswith(("SANDFARM_", "PYTHON"))},
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OPENAI_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": "not-a-key",
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "not-a-key",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
        "HF_HUB_OFFLINE": "1",
        **{f"{scheme}_PROXY": nowhere for scheme in ("HTTP", "HTTPS", "ALL")},
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, RECIPES / f"{name}.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, model.problems) == (0, []), done.stderr
    assert done.stdout == "The tool says: median 2\n"
    assert len(model.requests) == 3
    last = str(model.requests[-1][1])
    for code in (WRONG, RIGHT):
        assert repr(code)[1:-1].split("\\n")[0] in last, "the model sees its own calls again"


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_recipe_shows_its_file(name: str) -> None:
    blocks = [(match[1], match[2]) for match in BLOCK.finditer((PAGES / f"{name}.md").read_text(encoding="utf-8"))]
    assert [text for kind, text in blocks if kind == "python"] == [(RECIPES / f"{name}.py").read_text(encoding="utf-8")]
    assert f"({name}.md)" in (PAGES / "README.md").read_text(encoding="utf-8")
    pins = (RECIPES / "requirements.txt").read_text(encoding="utf-8")
    (install,) = (text for kind, text in blocks if kind == "sh")
    packages = install.splitlines()[0].removeprefix("pip install dist/sandfarm-*.whl").split()
    assert packages, "the page says what to install"
    assert all(f"\n{package}==" in pins for package in packages)


def test_every_page_has_a_recipe() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "README") == NAMES
