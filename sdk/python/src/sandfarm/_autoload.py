"""Names of files that other programs load or run by name.

A sandbox chooses the names of its artifacts. Saving one under such a name would let its code out of the sandbox, at the next
`make` or `pytest` in that directory. The command line applies the same rule.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import unicodedata
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

_LOADED_BY = {
    "makefile": "make runs it",
    "gnumakefile": "make runs it",
    "bsdmakefile": "make runs it",
    "justfile": "just runs it",
    "rakefile": "rake runs it",
    "rakefile.rb": "rake runs it",
    "taskfile*.yml": "task runs it",
    "taskfile*.yaml": "task runs it",
    "cmakelists.txt": "cmake runs it",
    "build.gradle*": "gradle runs it",
    "dockerfile": "docker build runs it",
    "docker-compose*.yml": "docker compose runs it",
    "docker-compose*.yaml": "docker compose runs it",
    "compose*.yml": "docker compose runs it",
    "compose*.yaml": "docker compose runs it",
    "vagrantfile": "vagrant runs it",
    "tiltfile": "tilt runs it",
    "ansible.cfg": "ansible loads what it names",
    "mise.toml": "mise loads it",
    "shell.nix": "nix-shell runs it",
    "flake.nix": "nix runs it",
    "claude.md": "coding agents follow it",
    "claude.local.md": "coding agents follow it",
    "agents.md": "coding agents follow it",
    "agents.override.md": "coding agents follow it",
    "gemini.md": "coding agents follow it",
    "qwen.md": "coding agents follow it",
    "conftest.py": "pytest runs it",
    "pytest.ini": "pytest loads what it names",
    "pytest.toml": "pytest loads what it names",
    "tox.ini": "pytest loads what it names",
    "setup.cfg": "pytest loads what it names",
    "pyproject.toml": "pytest loads what it names",
    "uv.toml": "uv loads what it names",
    "setup.py": "pip runs it",
    "noxfile.py": "nox runs it",
    "package.json": "npm runs what it names",
    "*.config.[jt]s": "tools for JavaScript run it",
    "*.config.[cm][jt]s": "tools for JavaScript run it",
    "gulpfile.*": "gulp runs it",
    "gruntfile.*": "grunt runs it",
    "nodemon.json": "nodemon runs what it names",
    "karma.conf.*": "karma runs it",
    "cdk.json": "cdk runs what it names",
    "bunfig.toml": "bun loads what it names",
    "deno.json": "deno runs what it names",
    "deno.jsonc": "deno runs what it names",
    "composer.json": "composer runs what it names",
    "cargo.toml": "cargo runs what it names",
    "build.rs": "cargo runs it",
    "rust-toolchain": "cargo runs what it names",
    "rust-toolchain.toml": "cargo runs what it names",
    "gemfile": "bundler runs it",
    "gems.rb": "bundler runs it",
    "config.ru": "rackup runs it",
    "procfile": "foreman runs what it names",
    "containerfile": "podman build runs it",
    "sconstruct": "scons runs it",
    "sconscript": "scons runs it",
    "snakefile": "snakemake runs it",
    "meson.build": "meson runs it",
    "build": "bazel runs it",
    "build.bazel": "bazel runs it",
    "module.bazel": "bazel runs it",
    "workspace": "bazel runs it",
    "workspace.bazel": "bazel runs it",
    "earthfile": "earthly runs it",
    "jenkinsfile": "jenkins runs it",
    "podfile": "pod runs it",
    "brewfile": "brew runs it",
    "cmakepresets.json": "cmake runs what it names",
    "cmakeuserpresets.json": "cmake runs what it names",
    "directory.build.props": "dotnet builds load it",
    "directory.build.targets": "dotnet builds run it",
    "nuget.config": "dotnet loads what it names",
    "global.json": "dotnet loads what it names",
    "conanfile.py": "conan runs it",
    "setup.hs": "cabal runs it",
    "docker-bake.*": "docker buildx bake runs what it names",
    "settings.gradle*": "gradle runs it",
    "gradle.properties": "gradle loads what it names",
    "gradlew*": "builds run it",
    "mvnw*": "builds run it",
    "pom.xml": "maven runs what it names",
    "build.xml": "ant runs it",
    "build.sbt": "sbt runs it",
    "mix.exs": "mix runs it",
    "package.swift": "swift runs it",
    "default.nix": "nix-build runs it",
    "lefthook.yml": "git runs what it names",
    "lefthook.yaml": "git runs what it names",
    "lefthook.toml": "git runs what it names",
    "lefthook.json": "git runs what it names",
    "lefthook-local.*": "git runs what it names",
    "fabfile.py": "fab runs it",
    "tasks.py": "invoke runs it",
    "dodo.py": "doit runs it",
    "pylintrc": "pylint loads what it names",
    "mypy.ini": "mypy loads what it names",
    "mkdocs.yml": "mkdocs runs what it names",
    "book.toml": "mdbook runs what it names",
    "agent.md": "coding agents follow it",
    "warp.md": "coding agents follow it",
    "opencode.json": "coding agents load what it names",
    "opencode.jsonc": "coding agents load what it names",
    "head": "git takes its directory for a repository",
    "gunicorn.conf.py": "gunicorn runs it",
    "locustfile.py": "locust runs it",
    "tox.toml": "tox runs what it names",
    "pixi.toml": "pixi runs what it names",
    "hatch.toml": "hatch runs what it names",
    "jest.config.json": "jest runs what it names",
    "babel.config.json": "babel runs what it names",
    "nx.json": "nx runs what it names",
    "rebar.config": "rebar3 runs what it names",
    "project.clj": "lein runs it",
    "fastfile": "fastlane runs it",
    "guardfile": "guard runs it",
    "dangerfile": "danger runs it",
    "thorfile": "thor runs it",
    "desktop.ini": "Windows loads it",
    "sitecustomize*": "Python runs it at every start",
    "usercustomize*": "Python runs it at every start",
}
# Modules of the standard library that no program imports by accident, and whose names people give to scripts.
_RARE_MODULES = frozenset({"test", "this", "antigravity", "turtledemo", "idlelib"})
_WINDOWS_PROGRAMS = (".exe", ".com", ".bat", ".cmd", ".ps1", ".lnk")


def _importable(module: str) -> bool:
    if module in sys.stdlib_module_names:
        return True
    try:
        return "." not in module and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


# Ends of names that are loaded before others when neither is named, as on the command line.
_BEFORE = {
    "": (".js", ".json", ".node", ".mjs", ".cjs", ".ts", ".tsx", ".jsx"),
    ".js": (".json", ".node", "/index.js", "/package.json"),
    ".json": (".node", "/index.js", "/package.json"),
    ".node": ("/index.js", "/package.json"),
    ".ts": (".js", ".jsx", ".tsx"),
    ".tsx": (".js", ".jsx"),
}


def _comes_before(folder: Path, name: str) -> bool:
    """Whether a new file of the folder would be loaded in place of one that is there."""
    end = PurePosixPath(name).suffix
    stem = name.removesuffix(end) if end else name
    return not os.path.lexists(folder / name) and any(
        os.path.lexists(folder / (stem + other)) for other in _BEFORE.get(end, ())
    )


def reason(name: str, folder: Path | None = None) -> str:
    """Why a file must not get this name in a folder, such as "make runs it"; empty if it may.

    Upper case, ligatures and invisible characters make no difference, because some file systems ignore them.
    """
    if folder is not None and all(os.path.lexists(folder / part) for part in ("HEAD", "objects", "refs")):
        return "git runs what files of its repository name"
    if folder is not None and _comes_before(folder, name):
        return "Python or Node loads it in place of another file"
    name = unicodedata.normalize("NFKC", "".join(c for c in name if unicodedata.category(c) != "Cf")).casefold()
    if name.startswith("."):
        return "it is hidden"
    for pattern, why in _LOADED_BY.items():
        if fnmatchcase(name, pattern):
            return why
    stem, dot, extension = name.rpartition(".")
    if dot and extension in ("pyc", "so", "pyd"):  # before the source beside it
        return "Python or Node loads it in place of another file"
    if dot and extension in ("py", "pyw") and stem not in _RARE_MODULES and _importable(stem):
        return "Python or Node loads it in place of another file"
    if sys.platform == "win32" and name.endswith(_WINDOWS_PROGRAMS):
        return "Windows runs it as a command"
    if shutil.which(name):
        return "it has the name of a program on your PATH"
    return ""
