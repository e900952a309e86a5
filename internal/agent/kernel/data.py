"""Displayed values also as data, for callers who ask for it: charts of figures, columns of tables, lists and dicts."""

import sys

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

import sandfarm_chart as charts

MAX_CELLS = 20_000  # of a table, and items of a list or dict with all that is in it; what has more is no data
MAX_DEPTH = 32


def is_a(value, module, name):
    """Whether a value is of a class, whose module is not imported for that."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


class Charts(BaseFormatter):
    """Figures of matplotlib."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, value):
        if not self.enabled:
            return None
        return charts.chart_of(value) if is_a(value, "matplotlib.figure", "Figure") else super().__call__(value)


class Tables(BaseFormatter):
    """Tables of pandas: a list for each column."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)

    def __call__(self, value):
        if not self.enabled:
            return None
        if not is_a(value, "pandas", "DataFrame"):
            return super().__call__(value)
        try:
            return {str(name): plain(list(column), MAX_CELLS + 1) for name, column in value.items()} if value.size <= MAX_CELLS else None
        except Exception:  # the cells may be anything
            return None


def items(value):
    """A list or dict as data; None if it is too large or has what JSON has not."""
    try:
        return plain(value)
    except Exception:
        return None


def plain(value, left=MAX_CELLS):
    """A value in JSON's types, with that many items at most."""

    def copy(value, depth):
        nonlocal left
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise ValueError
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if value - value == 0 else None
        if isinstance(value, dict):
            return {str(key): copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [copy(item, depth + 1) for item in value]
        if hasattr(value, "isoformat"):
            return value.isoformat()
        if getattr(value, "size", MAX_CELLS + 1) <= left and hasattr(value, "tolist"):  # of numpy
            return copy(value.tolist(), depth + 1)
        raise ValueError

    return copy(value, 0)


def switch(shell, on):
    """Says whether values are shown as data, too."""
    formatters = shell.display_formatter.formatters
    for kind in (Charts, Tables):
        name = kind.format_type.default_value
        if name not in formatters:
            formatters[name] = kind(parent=shell.display_formatter)
        formatters[name].enabled = on
    printers = formatters["application/json"].type_printers  # which code may have added to
    for kind in (list, dict):
        if on:
            printers.setdefault(kind, items)
        elif printers.get(kind) is items:
            del printers[kind]
