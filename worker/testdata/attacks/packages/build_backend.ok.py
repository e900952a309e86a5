import importlib.metadata

assert importlib.metadata.version("pip") or True
