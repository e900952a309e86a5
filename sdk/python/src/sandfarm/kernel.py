"""A kernel of the farm for the Jupyter of this machine: `python -m sandfarm.kernel -f {connection_file}`.

Needs the extra `kernel` of this package; the kernelspec of `sandfarm kernel install` starts it. It listens where the
connection file says, and passes messages on, unread, to the WebSocket of a kernel of the farm at `URL/jupyter`, and back.

The farm's kernel lives as long as the client wants it: it is shut down when the client says so, and when the client or this
process ends in order. A client that restarts the kernel starts a new process with the same connection file: that finds the
sandbox again, by the session of the farm that is named after the key in the file, so that the sandbox and its files outlive
a restart. A broken connection to the farm is made again, and the farm sends again what was missed. If the sandbox itself
ends, the next message of the client starts another one, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.session import DELIM, Session
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from ._http import Call, Http, Settings, read_key
from ._io import AsyncIO
from .errors import NotFoundError, SandfarmError, UnauthorizedError

CHANNELS = {"shell": zmq.ROUTER, "control": zmq.ROUTER, "stdin": zmq.ROUTER, "iopub": zmq.PUB, "hb": zmq.REP}
HEADER, PARENT, CONTENT, JSON_PARTS = 0, 1, 3, 4  # of a message: header, parent, metadata, content; buffers follow
SUBPROTOCOL = Subprotocol("v1.kernel.websocket.jupyter.org")
MAX_MESSAGE_BYTES = 256 << 20  # of the farm: a displayed value at most, and buffers of a widget
MAX_ASKERS = 10_000  # messages that are remembered until they are answered; answers to older ones are dropped
WAITING_MESSAGES = 16  # messages of clients that wait for the farm; ZeroMQ holds those behind them
START_SECONDS = 120.0  # for a new kernel: the farm answers earlier, if need be with one that is still starting
REQUEST_SECONDS = 45.0  # for other requests
END_SECONDS = 4.0  # for the end of the farm's kernel: a client kills this process some five seconds after it asked
SLOW_SECONDS = 30.0  # for a client that does not read what the kernel publishes
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0  # between two tries to reach the farm


def encode(channel: str, parts: Sequence[bytes]) -> bytes:
    """Lays a message out for the WebSocket: the number of offsets, the offsets, and the pieces between them."""
    pieces = [channel.encode(), *parts]
    offsets = list(accumulate(map(len, pieces), initial=8 * (len(pieces) + 2)))
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(pieces)


def decode(data: bytes) -> tuple[str, list[bytes]]:
    """The reverse of `encode`."""
    count = int.from_bytes(data[:8], "little")
    offsets = struct.unpack_from(f"<{count}Q", data, 8)
    channel, *parts = (data[start:end] for start, end in pairwise(offsets))
    return channel.decode(), parts


async def first(*works: Coroutine[Any, Any, object]) -> None:
    """Runs all until one of them ends or fails, and cancels the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


class Kernel:
    """One kernel: sockets of this machine, and a kernel of the farm."""

    def __init__(self, connection: Mapping[str, Any], path: str, farm: Http, image: str) -> None:
        key = str(connection["key"])
        self.session = Session(key=key.encode(), signature_scheme=connection.get("signature_scheme") or "hmac-sha256")
        seed = key or f"{socket.gethostname()} {path}"  # without a key the path alone is the best there is
        self.path = "local/" + hashlib.sha256(f"sandfarm kernel {seed}".encode()).hexdigest()[:32]  # does not tell the key
        self.farm, self.image = farm, image
        self.id = ""  # of the farm's kernel
        self.own = False  # whether the farm's session is this kernel's
        self.restarting = False
        self.stop = asyncio.Event()
        self.up: asyncio.Queue[tuple[str, list[bytes]]] = asyncio.Queue(WAITING_MESSAGES)
        self.pending: tuple[str, list[bytes]] | None = None  # what was not sent to the farm yet
        self.askers: dict[str, list[bytes]] = {}  # who sent a message
        self.context = zmq.Context()
        self.sockets: dict[str, Any] = {}
        for channel, kind in CHANNELS.items():
            made: Any = (zmq.Socket if channel == "iopub" else zmq.asyncio.Socket)(self.context, kind)
            made.linger = 1000  # milliseconds for what a client has not read at the end
            if kind == zmq.ROUTER:
                made.router_handover = 1
            separator = "-" if connection["transport"] == "ipc" else ":"
            made.bind(f"{connection['transport']}://{connection['ip']}{separator}{connection[channel + '_port']}")
            self.sockets[channel] = made
        self.sockets["iopub"].xpub_nodrop = 1

    async def run(self) -> None:
        """Is a kernel until a client shuts it down, or `stop` is set."""
        try:
            takers = [self.take(channel) for channel in ("shell", "control", "stdin")]
            await first(self.serve(), *takers, self.beat(), self.watch_parent(), self.stop.wait())
        finally:
            if not self.restarting:  # the process that comes next finds it
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.end(), END_SECONDS)
            for opened in self.sockets.values():
                opened.close()
            self.context.term()

    # --- clients ------------------------------------------------------------------------------------------------------

    async def take(self, channel: str) -> None:
        """Takes what clients send on a channel."""
        while True:
            frames = await self.sockets[channel].recv_multipart()
            try:
                asker, parts, header, content = self.check(frames)
                kind, number = header["msg_type"], header["msg_id"]
            except (ValueError, TypeError, KeyError) as error:
                log(f"a message on {channel} is left out: {error}")
                continue
            if channel != "stdin":
                self.askers[number] = asker
                if len(self.askers) > MAX_ASKERS:
                    del self.askers[next(iter(self.askers))]
            if kind == "shutdown_request":  # a restart is the same here: the client starts this program again
                self.restarting = bool(content.get("restart"))
                for to in (channel, "iopub"):
                    await self.say(to, "shutdown_reply", header, {"status": "ok", "restart": self.restarting})
                self.stop.set()
            else:
                await self.up.put((channel, parts))

    def check(self, frames: list[bytes]) -> tuple[list[bytes], list[bytes], Any, Any]:
        """Who sent a message, its parts, its header and its content.

        Raises:
            ValueError: it is not a message, or its signature is wrong.
        """
        at = frames.index(DELIM)
        signature, *parts = frames[at + 1 :]
        if not hmac.compare_digest(signature, self.session.sign(parts[:JSON_PARTS])):
            raise ValueError("its signature is wrong")
        header, _, _, content = (json.loads(part) for part in parts[:JSON_PARTS])
        return frames[:at], parts, header, content

    async def say(self, channel: str, kind: str, parent: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        """Sends clients a message of this process's own."""
        message = self.session.msg(kind, dict(content), parent=dict(parent))
        await self.give(channel, self.session.serialize(message)[2:])

    async def give(self, channel: str, parts: list[bytes]) -> None:
        """Gives a message of the kernel to the clients that it is for. One that is gone gets nothing."""
        frames = [DELIM, self.session.sign(parts[:JSON_PARTS]), *parts]
        if channel == "iopub":
            kind = json.loads(parts[HEADER])["msg_type"]
            if kind != "status" or json.loads(parts[CONTENT]).get("execution_state") != "dead":  # the next message starts it
                await self.publish([f"kernel.{kind}".encode(), *frames])
            return
        asked = json.loads(parts[PARENT]).get("msg_id", "")
        # A question goes to the socket of the same client as its cell, whose answer is still to come.
        asker = self.askers.get(asked) if channel == "stdin" else self.askers.pop(asked, None)
        if asker is not None:
            await self.sockets[channel].send_multipart([*asker, *frames])

    async def publish(self, frames: list[bytes]) -> None:
        """Waits for clients that read slowly, as the cell does then. When one has not read for long, those miss output."""
        tries = 0
        while True:
            try:
                self.sockets["iopub"].send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                tries += 1
                if tries * 0.01 > SLOW_SECONDS:
                    self.sockets["iopub"].xpub_nodrop = 0
                await asyncio.sleep(0.01)
            else:
                return

    async def beat(self) -> None:
        """Answers the heartbeats of clients."""
        while True:
            await self.sockets["hb"].send_multipart(await self.sockets["hb"].recv_multipart())

    async def watch_parent(self) -> None:
        """Ends when the process that started this one has, if Jupyter says that its kernels are to end with it."""
        parent = os.getppid()
        while not os.environ.get("JPY_PARENT_PID") or os.getppid() == parent:  # noqa: ASYNC110 # the system does not tell
            await asyncio.sleep(1)

    # --- the farm -----------------------------------------------------------------------------------------------------

    async def call(self, method: str, *path: str, body: Any = None, seconds: float = REQUEST_SECONDS) -> Any:
        """Makes a request to the farm's address for clients of Jupyter."""
        return (await self.farm.answer(Call(method, ("jupyter", "api", *path), body=body, once=True, read_timeout=seconds)))[1]

    async def find(self) -> str:
        """The kernel that an earlier process for the same connection has left; empty if there is none."""
        found = (session for session in await self.call("GET", "sessions") if session["path"] == self.path)
        return str(next((session["kernel"]["id"] for session in found), ""))

    async def start(self) -> None:
        """Makes a kernel in the farm, or takes the one that is there, without its variables."""
        if found := await self.find():
            self.id, self.own = found, True
            await self.call("POST", "kernels", self.id, "restart")
            return
        env = {name: value for name, value in os.environ.items() if name.startswith("KERNEL_")}
        body = {"path": self.path, "name": f"a kernel on {socket.gethostname()}", "type": "kernel"}
        made = await self.call(
            "POST", "sessions", body=body | {"kernel": {"name": self.image, "env": env}}, seconds=START_SECONDS
        )
        self.id, self.own = made["kernel"]["id"], made["path"] == self.path

    async def end(self) -> None:
        """Shuts the kernel down in the farm."""
        if not self.id:  # it may have been made, and the answer lost
            with suppress(SandfarmError):
                self.id, self.own = await self.find(), True
        try:
            if self.id and self.own:
                await self.call("DELETE", "kernels", self.id)
        except NotFoundError:
            pass  # it has ended
        except SandfarmError as error:
            log(f"the kernel could not be shut down: its sandbox ends when it has been idle: {error}")

    async def serve(self) -> None:
        """Has the farm run the kernel, and starts it again in another sandbox when that is needed after the first has ended."""
        await self.start()
        while True:
            await self.carry()
            self.id = ""
            self.pending = self.pending or await self.up.get()
            await self.start()
            text = "[The sandbox of this kernel has ended. This is a new one: its variables and files are gone.]\n"
            await self.say("iopub", "stream", json.loads(self.pending[1][HEADER]), {"name": "stderr", "text": text})

    async def carry(self) -> None:
        """Passes messages on over one connection after another, until the kernel has ended."""
        key, pause = self.farm.settings.key, FIRST_PAUSE
        while True:
            try:
                async with connect(
                    f"ws{self.farm.settings.url[4:]}/jupyter/api/kernels/{self.id}/channels?session_id={self.session.session}",
                    additional_headers={"Authorization": f"Bearer {key}"} if key else None,
                    user_agent_header="sandfarm-kernel",
                    subprotocols=[SUBPROTOCOL],
                    compression=None,
                    open_timeout=REQUEST_SECONDS,
                    ping_timeout=2 * SLOW_SECONDS,
                    close_timeout=1,
                    max_size=MAX_MESSAGE_BYTES,
                ) as farm:
                    pause = FIRST_PAUSE
                    await first(self.read(farm), self.send(farm))
            except InvalidStatus as error:
                if (status := error.response.status_code) == 404:
                    return
                if status in {401, 403}:
                    raise UnauthorizedError("the farm does not take the API key any more", status=status) from None
                why: Exception = error
            except (OSError, asyncio.TimeoutError, WebSocketException) as error:
                why = error
            else:
                return
            log(f"the connection to the farm has ended: it is made again: {why}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    async def read(self, farm: ClientConnection) -> None:
        """Passes on what the farm says, until the kernel has ended."""
        async for data in farm:
            await self.give(*decode(data if isinstance(data, bytes) else data.encode()))
        if farm.close_code != 1000:
            raise ConnectionError(f"the farm has closed it with code {farm.close_code}")

    async def send(self, farm: ClientConnection) -> None:
        """Passes on what clients say. What could not be sent is the first over the next connection."""
        while True:
            self.pending = self.pending or await self.up.get()
            await farm.send(encode(*self.pending))
            self.pending = None


def log(text: str) -> None:
    """Tells the operator: clients show what a kernel writes here, or keep it in their own log."""
    sys.stderr.write(f"sandfarm: {text}\n")


async def run(options: argparse.Namespace) -> None:
    """Runs the kernel that the command line describes."""
    key = read_key(options.key_file) if options.key_file else None
    settings = Settings.make(options.url, key, REQUEST_SECONDS, retries=3, max_pause=30)
    try:
        connection = json.loads(Path(options.connection_file).read_text())
        kernel = Kernel(connection, options.connection_file, Http(settings, AsyncIO()), options.image)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{options.connection_file} is no connection file of Jupyter: {error!r}") from None
    loop = asyncio.get_running_loop()
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, lambda *_: loop.call_soon_threadsafe(kernel.stop.set))
    try:
        await kernel.run()
    finally:
        await kernel.farm.io.close()


def main(args: Sequence[str] | None = None) -> None:
    """The command line. Ends the process with code 1 and one line if the kernel cannot run."""
    parser = argparse.ArgumentParser(prog="python -m sandfarm.kernel", description="Be a kernel that runs in the farm.")
    parser.add_argument("-f", "--connection-file", required=True, help="says where to listen")
    parser.add_argument("--image", default="", help="image of the sandbox; without it the farm's default")
    parser.add_argument("--url", help="the farm's address; without it SANDFARM_URL")
    parser.add_argument("--key-file", help="has the API key; without it SANDFARM_API_KEY, or the file SANDFARM_API_KEY_FILE")
    try:
        asyncio.run(run(parser.parse_args(args)))
    except (SandfarmError, OSError, ValueError, zmq.ZMQError) as error:
        sys.exit(f"sandfarm: {error}")


if __name__ == "__main__":
    main()
