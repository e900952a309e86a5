"""Placed here by the sandbox and run by every Python process: packages installed here come before the image's packages, but after the
standard library. PYTHONPATH alone would let a package called asyncio or uuid shadow Python's own."""

import os
import sys


def settle():
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if entry != here]
    sites = [i for i, entry in enumerate(path) if os.path.basename(entry) in ("site-packages", "dist-packages")]
    path.insert(sites[0] if sites else len(path), here)
    sys.path[:] = path
    return here, path


def follow(here, path):
    """Runs the image's own sitecustomize."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [entry for entry in path if entry != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


follow(*settle())
