"""No module of the package imports another in a circle, not even for type checking."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import sandfarm

PACKAGE = Path(sandfarm.__file__).parent


def imports(module: Path) -> set[str]:
    """The modules of the package that a module imports, also inside functions and under `TYPE_CHECKING`."""
    known = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sandfarm":
            found |= {str(node.module).removeprefix("sandfarm").lstrip(".")}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("sandfarm.") for alias in node.names if alias.name.startswith("sandfarm")}
    assert found <= known, f"{module.name} imports {found - known}"
    return found


def test_the_import_graph_has_no_cycle() -> None:
    graph = {path.stem: imports(path) for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    assert graph["client"] >= {"aio", "farm", "runner"}, "the graph is read from the right files"
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("errors") < order.index("results") < order.index("aio") < order.index("client")
