"""Limits and priorities may be set of any process of the same uid, the agent among them."""
# sample: true

import os
import resource

agent = [int(thread) for thread in os.listdir("/proc/1/task")]
for pid in agent:
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC):
        try:
            resource.prlimit(pid, limit, (0, 0))
            raise AssertionError(f"limit {limit} of {pid} was set")
        except PermissionError:
            pass
for kind, who in [(os.PRIO_PROCESS, 1), (os.PRIO_USER, 0), (os.PRIO_PGRP, os.getpgid(1))]:
    try:
        os.setpriority(kind, who, 19)
        raise AssertionError(f"priority of {kind} {who} was set")
    except PermissionError:
        pass
try:
    os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
    raise AssertionError("the scheduler was set")
except PermissionError:
    pass
