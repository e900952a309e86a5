import traceback


def deep(n):
    return deep(n - 1) if n else 1 / 0


try:
    deep(500)
except ZeroDivisionError:
    assert traceback.format_exc().count("\n") > 5
