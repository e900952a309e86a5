"""The loop on which the kernel waits for the next cell: stopped, closed, its tasks cancelled, its reader removed."""
# next: KernelDied
# timeout: 10
# state: completed timed_out
# error: KernelDied KeyboardInterrupt RuntimeError CancelledError
# alone: true

import asyncio

loop = asyncio.get_running_loop()
for task in asyncio.all_tasks(loop):
    task.cancel()
loop.call_soon(loop.stop)
try:
    loop.close()
except RuntimeError:
    pass
await asyncio.sleep(0.1)
raise RuntimeError
