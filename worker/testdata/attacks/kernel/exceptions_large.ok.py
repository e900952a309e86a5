import traceback

try:
    raise ValueError("x" * 10_000)
except ValueError:
    assert len(traceback.format_exc()) > 10_000
