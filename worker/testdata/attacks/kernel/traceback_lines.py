"""An exception that says that its traceback has millions of lines without a text. They passed for nothing, since only text was counted, and
took a hundred times their size in the worker."""
# sample: true
# error: Many

class Many(Exception):
    def _render_traceback_(self):
        return [""] * 3_000_000


raise Many
