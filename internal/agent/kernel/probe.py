"""Finds the missing imports of code and the loaded modules. A running kernel answers these questions about itself; without a kernel,
this file is run with the name of a file that holds the code."""

import ast
import importlib
import importlib.util
import json
import re
import sys

# Namespace packages that many distributions share: only the second or third part of the name identifies the distribution.
SHARED = frozenset(("azure", "backports", "google", "jaraco", "ruamel", "sphinxcontrib", "zope"))
# Modules removed from Python: packages with these names in an index are something else.
GONE = frozenset(
    "aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp lib2to3 mailcap msilib nis nntplib ossaudiodev pipes smtpd sndhdr"
    " spwd sunau telnetlib uu xdrlib".split()
)
MOST = 200  # maximum number of names returned
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")
MAGIC = re.compile(r"^([ \t]*)(?:[%!]|[^\n#'\"=]*=[ \t]*[%!]).*$|^([ \t]*)[\w.]+\?{1,2}[ \t]*$", re.MULTILINE)
ABSENT = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))


def parse(code):
    """Parses code without IPython's syntax; None if it is not Python."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError):
        pass
    head, _, rest = code.lstrip().partition("\n")
    if head.startswith("%%"):
        if not head.startswith(PYTHON_CELLS):
            return None
        code = rest
    try:
        return ast.parse(MAGIC.sub(lambda m: (m[1] or m[2] or "") + "pass", code))
    except (SyntaxError, ValueError):
        return None


def imported(tree):
    """The names that a tree imports, without optional imports in try blocks and imports for type checkers only."""
    names, todo = {}, [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            if not node.level and node.module:
                shared = node.module.partition(".")[0] in SHARED
                names.update(dict.fromkeys(f"{node.module}.{a.name}" if shared and a.name != "*" else node.module for a in node.names))
        elif isinstance(node, ast.Try) and any(expects_absence(h) for h in node.handlers):
            todo += node.orelse + node.finalbody
            continue
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in (getattr(node.test, "id", ""), getattr(node.test, "attr", "")):
            todo += node.orelse
            continue
        elif isinstance(node, ast.Call) and called(node.func) and node.args and isinstance(node.args[0], ast.Constant):
            if isinstance(node.args[0].value, str) and not node.args[0].value.startswith("."):
                names[node.args[0].value] = None
        todo += reversed(list(ast.iter_child_nodes(node)))
    return list(names)


def called(func):
    return getattr(func, "attr", getattr(func, "id", "")) in ("import_module", "__import__")


def expects_absence(handler):
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", "") in ABSENT for kind in kinds)


def absent(name):
    """The part of a name that no finder finds; None if nothing is missing."""
    parts = name.split(".")
    if parts[0] in GONE or parts[0] in sys.builtin_module_names or parts[0] in getattr(sys, "stdlib_module_names", ()):
        return None
    depth = 3 if parts[0] in SHARED else 1
    for i in range(1, min(depth, len(parts)) + 1):
        part = ".".join(parts[:i])
        if part in sys.modules:
            continue
        try:
            spec = importlib.util.find_spec(part)
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is None:
            return ".".join(parts[:depth])
        if spec.origin not in (None, "namespace"):
            return None  # an ordinary package is installed as a whole
    return None


def missing(code):
    if "import" not in code:
        return []
    tree = parse(code)
    importlib.invalidate_caches()
    return [] if tree is None else list(dict.fromkeys(name for name in map(absent, imported(tree)) if name))[:MOST]


def loaded(modules):
    """The versions of the loaded modules; empty if unknown."""
    found = {}
    for name in modules:
        if name in sys.modules:
            version = getattr(sys.modules[name], "__dict__", {}).get("__version__")
            found[name] = version if isinstance(version, str) else ""
    return found


def warm(modules):
    """Imports the installed modules, so that code need not wait for them. A failing import would fail for the code too."""
    for name in modules:
        try:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
        except Exception:
            pass


def answer(question):
    warm(question.get("warm") or ())
    try:
        return {"missing": missing(question.get("code") or ""), "loaded": loaded(question.get("modules") or ())}
    except (RecursionError, MemoryError):
        return {"missing": [], "loaded": {}}


if __name__ == "__main__":
    sys.path[0] = ""
    with open(sys.argv[1], encoding="utf-8", errors="replace") as f:
        print(json.dumps(answer({"code": f.read()})))
