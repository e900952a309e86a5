"""Values whose representation is endless, huge, or kills: what the last line of a cell is shown as."""
# timeout: 4
# state: timed_out completed
# error: KeyboardInterrupt KernelDied OutOfMemory

class Many:
    def __repr__(self):
        return "x" * (30 << 20)

    def _repr_html_(self):
        return self

    def _repr_png_(self):
        return 7

    def _repr_mimebundle_(self, **_):
        while True:
            pass


Many()
