import os

os.chmod("/workspace", 0o755)
os.chmod("locked", 0o755)
os.chmod("sealed", 0o644)
