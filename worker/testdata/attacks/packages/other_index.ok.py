import os

for path in ("~/.config/pip/pip.conf", "~/.config/uv/uv.toml", "/workspace/requirements.txt"):
    if os.path.exists(os.path.expanduser(path)):
        os.unlink(os.path.expanduser(path))
