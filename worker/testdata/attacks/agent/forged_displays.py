"""Displays that are none: values of other types, numbers below zero, names of megabytes, deep nesting, for executions of others."""
# next: KernelDied
# error: KernelDied
# alone: true

import os

control = get_ipython().send_event.__globals__["control"]
me = os.environ["SBX_EXEC"]
for message in (
    {"op": "display", "id": me, "data": {"text/plain": "x"}, "metadata": "not an object"},
    {"op": "display", "id": me, "data": {"text/plain": "x"}, "display_id": "n" * 1_000_000},
    {"op": "display", "id": "another", "data": {"text/plain": "x"}},
    {"op": "display", "id": me, "data": {"../../x": "y", "": "z"}},
    {"op": "clear", "id": me, "wait": True},
    {"op": "comm", "kind": "comm_open", "content": {"x": "y" * 1_000_000}},
    {"op": "answer", "number": 99999, "content": {}},
    {"op": "nothing that there is"},
    {"op": "display", "id": me, "data": 7},
):
    control.send(message)
