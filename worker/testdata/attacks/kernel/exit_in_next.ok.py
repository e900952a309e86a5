import os

seen = []


def hook(*_):
    seen.append(1)


get_ipython().events.register("pre_run_cell", hook)
get_ipython().events.unregister("pre_run_cell", hook)
