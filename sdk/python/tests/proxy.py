"""A TCP proxy in front of the farm that can break connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit


class Proxy:
    """Forwards connections to a farm. `cut` breaks the open ones; `limit` breaks each one after so many bytes of answers."""

    def __init__(self, farm: str) -> None:
        parts = urlsplit(farm)
        self._farm = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.refusing = False
        self.limit: int | None = None
        self.connections = 0
        self.cuts = 0

    def __enter__(self) -> Proxy:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(20)

    def cut(self) -> None:
        """Breaks every open connection."""
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _run(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            self.connections += 1
            upstream = socket.create_connection(self._farm)
            with self._lock:
                self._open |= {client, upstream}
            self._run(self._pump, client, upstream, False)
            self._run(self._pump, upstream, client, True)

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        passed = 0
        try:
            while data := source.recv(64 << 10):
                if answers and self.limit is not None and passed + len(data) > self.limit:
                    self.cuts += 1
                    target.sendall(data[: self.limit - passed])
                    break
                passed += len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            with self._lock:
                for end in (source, target):
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                    end.close()
                self._open -= {source, target}
