"""Symbolic links that lead out of the workspace: to a file, to the root, to another link, by a relative path."""
# reads: link root/etc/passwd chain up/etc/passwd

import os

for name, target in (("link", "/etc/passwd"), ("root", "/"), ("chain", "link"), ("up", "../../../../../..")):
    if not os.path.lexists(name):
        os.symlink(target, name)
