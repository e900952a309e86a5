"""Placed here by the sandbox and run by every Python process: packages installed here come before the image's packages, but after the
standard library. PYTHONPATH alone would let a package called asyncio or uuid shadow Python's own."""

import os
import site
import sys


here = os.path.dirname(os.path.abspath(__file__))
# Whether this Python is of a virtual environment that was made in the sandbox. It has its own packages, and not those of the sandbox.
made_here = os.path.realpath(sys.prefix).startswith((os.path.dirname(here) + "/", "/workspace/", "/tmp/"))


def settle():
    path = [entry for entry in sys.path if entry != here]
    if made_here:
        sys.path[:] = path
        return path
    sites = [i for i, entry in enumerate(path) if os.path.basename(entry) in ("site-packages", "dist-packages")]
    path.insert(sites[0] if sites else len(path), here)
    sys.path[:] = path
    return path


def follow(path):
    """Runs the image's own sitecustomize."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [entry for entry in path if entry != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def tell():
    """Tells programs where they are that look beside the image's Python, or for a directory named site-packages."""
    share = os.path.join(here, "share", "jupyter")
    if os.path.isdir(os.path.join(share, "lab")):
        os.environ.setdefault("JUPYTERLAB_DIR", os.path.join(share, "lab"))
    if os.path.isdir(share):
        os.environ.setdefault("JUPYTER_PATH", share)
    if os.path.isdir(os.path.join(here, "streamlit")):
        os.environ.setdefault("STREAMLIT_GLOBAL_DEVELOPMENT_MODE", "false")


def runs_pip():
    """Whether this process is pip: `pip …`, `python -m pip …`."""
    words = iter(getattr(sys, "orig_argv", ())[1:])
    for word in words:
        if word in ("-W", "-X"):
            next(words, None)
        elif word == "-m":
            return next(words, None) == "pip"
        elif not word.startswith("-"):
            name = os.path.basename(word)
            return name.rstrip("0123456789.") == "pip" or name == "__pip-runner__.py"
    return False


def adopt():
    """Makes this directory the user site of pip, which then adds, updates and removes packages and programs here and lets the image's
    be. A pip that is not seen here installs by PIP_TARGET, which cannot add programs to those that are there."""
    if os.environ.get("PIP_TARGET", here) != here:
        return
    os.environ.pop("PIP_TARGET", None)
    if made_here:
        return
    import sysconfig

    preferred, prefix = sysconfig.get_preferred_scheme, sysconfig.get_preferred_scheme("prefix")
    sysconfig.get_preferred_scheme = lambda key: prefix if key == "prefix" else preferred(key)
    sysconfig._INSTALL_SCHEMES["posix_user"].update(purelib=here, platlib=here, scripts=os.path.join(here, "bin"), data=here)
    sys.base_prefix = sys.prefix  # pip has no user site in a virtual environment, as the image's Python is
    site.ENABLE_USER_SITE, site.USER_BASE, site.USER_SITE = True, here, here
    os.environ.setdefault("PIP_BREAK_SYSTEM_PACKAGES", "1")  # the system's stay as they are
    if "install" in sys.orig_argv and not any(word.startswith(("-t", "--target", "--prefix", "--root")) for word in sys.orig_argv):
        os.environ.setdefault("PIP_USER", "1")


path = settle()
tell()
if runs_pip():
    adopt()
if not made_here:
    site.addsitedir(here)  # for .pth files, as of `pip install -e`
follow(path)
