"""In place of the pipes of the next execution the agent is given a device without end, which it read for ever."""
# sample: true
# next: KernelDied

import os

names = get_ipython().send_event.__globals__


def begin(ident):
    sinks = [names["output"].Sink(os.open("/dev/null", os.O_WRONLY)) for _ in range(2)]
    names["control"].send({"op": "begin", "id": ident}, [os.open("/dev/zero", os.O_RDONLY) for _ in range(2)])
    return names["output"].Execution(ident, tuple(sinks))


names["begin"] = begin
