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


def tell(here):
    """Tells programs where they are that look beside the image's Python, or for a directory named site-packages."""
    share = os.path.join(here, "share", "jupyter")
    if os.path.isdir(os.path.join(share, "lab")):
        os.environ.setdefault("JUPYTERLAB_DIR", os.path.join(share, "lab"))
    if os.path.isdir(share):
        os.environ.setdefault("JUPYTER_PATH", share)
    if os.path.isdir(os.path.join(here, "streamlit")):
        os.environ.setdefault("STREAMLIT_GLOBAL_DEVELOPMENT_MODE", "false")


where = settle()
tell(where[0])
follow(*where)
