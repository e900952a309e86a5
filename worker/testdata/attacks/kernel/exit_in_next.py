"""The kernel ends when the next execution begins, by a hook that was left behind."""
# next: KernelDied
# alone: true

import os

get_ipython().events.register("pre_run_cell", lambda *_: os._exit(1))
