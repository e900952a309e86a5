"""Runs programs in a real ipykernel: reads one program a line from stdin, as JSON, and writes what its cells did to stdout.

A program is {"cells": [code], "settle": bool, "restart": bool, "seconds": n}, the answer {"cells": [{"messages": [...], "reply": {...}}]}.
A cell without a reply killed the kernel, or took too long, which "timed_out" tells.
"""

import json
import os
import subprocess
import sys
import time

from jupyter_client.manager import KernelManager

# Run before each program. Every name is gone, and the count of executions begins anew.
RESET, WORKSPACE = sys.argv[1:]
MARK = "\x00end\x00"
# Output is flushed soon. A hint that IPython prints at the first SystemExit only is left out, since programs may run alone.
SETUP = """
import sys, warnings
sys.stdout.flush_interval = sys.stderr.flush_interval = 0.01
warnings.filterwarnings("ignore", message="To exit: use")
"""
SHOWN = {"stream", "display_data", "update_display_data", "execute_result", "clear_output", "error"}


class Kernel:
    """An ipykernel, and the client that talks to it."""

    def __init__(self):
        self.manager = KernelManager(transport="ipc", ip=os.path.abspath("kernel-ipc"))
        self.manager.start_kernel(
            cwd=WORKSPACE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # it copies there what bypasses Python's streams
            stderr=subprocess.DEVNULL,
            extra_arguments=[
                "--HistoryManager.hist_file=:memory:",
                "--InteractiveShell.colors=nocolor",
                "--IPKernelApp.quiet=True",
            ]
        )
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run(SETUP, 60, silent=True)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def next(self, deadline):
        """Returns the next message of the kernel, or None if it died or the time is over."""
        while True:
            wait = deadline - time.monotonic()
            if wait <= 0:
                return None
            message = self.receive(self.client.iopub_channel.socket, min(wait, 0.25))
            if message is not None:
                return message
            if not self.manager.is_alive():
                return None

    def receive(self, socket, seconds):
        """Returns the next message of a channel, or None. The client's own method costs several times as much."""
        return self.client.session.recv(socket, mode=0)[1] if socket.poll(max(0, seconds) * 1000) else None

    def run(self, code, seconds, settle=False, silent=False):
        """Runs a cell. settle waits for output that bypassed Python's streams, which comes later than the cell's end."""
        deadline = time.monotonic() + seconds
        ident = self.client.execute(code, silent=silent, store_history=not silent, allow_stdin=False, stop_on_error=False)
        messages = self.until_idle(ident, deadline)
        reply = None if messages is None else self.reply(ident, deadline)
        if settle and reply is not None:
            messages += self.late(deadline)
        return {"messages": messages or [], "reply": reply, "timed_out": reply is None and self.manager.is_alive()}

    def until_idle(self, ident, deadline):
        messages = []
        while True:
            message = self.next(deadline)
            if message is None:
                return None
            mine = message["parent_header"].get("msg_id") == ident
            if mine and message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return messages
            if message["msg_type"] in SHOWN:
                messages.append(shown(message))

    def late(self, deadline):
        """Returns the output that arrives before a mark which is written after it."""
        ident = self.client.execute(f"import os; [os.write(fd, {MARK.encode()!r}) for fd in (1, 2)]; del os", store_history=False)
        messages, open_streams = [], {"stdout", "stderr"}
        while open_streams:
            message = self.next(deadline)
            if message is None:
                break
            if message["msg_type"] in SHOWN:
                message = shown(message)
                if message["type"] == "stream" and MARK in message["content"]["text"]:
                    open_streams.discard(message["content"]["name"])
                    message["content"]["text"] = message["content"]["text"].replace(MARK, "")
                messages.append(message)
        self.reply(ident, deadline)
        return messages

    def reply(self, ident, deadline):
        while True:
            message = self.receive(self.client.shell_channel.socket, deadline - time.monotonic())
            if message is None:
                return None
            if message["parent_header"].get("msg_id") == ident:
                return message["content"]


def shown(message):
    return {"type": message["msg_type"], "content": message["content"]}


def main():
    kernel = Kernel()
    for line in sys.stdin:
        program = json.loads(line)
        try:
            cells = []
            for code in [RESET, *program["cells"]]:
                cells.append(kernel.run(code, program["seconds"], program["settle"]))
                if cells[-1]["reply"] is None:
                    break
            if cells[-1]["reply"] is None or program["restart"]:
                kernel.close()
                kernel = Kernel()
            answer = {"cells": cells[1:]}
        except Exception as e:
            answer = {"cells": [], "failed": repr(e)}
        print(json.dumps(answer, default=str), flush=True)
    kernel.close()


main()
