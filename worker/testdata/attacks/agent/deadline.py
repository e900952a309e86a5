"""The sandbox's own deadline, its limits and its settings are the worker's to change. Nothing that listens here takes them from user code."""

import socket

for request in (b'PUT /v1/deadline HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n{"at":"2999-01-01T00:00:00Z"}  ', b"DELETE /v1/executions HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00"):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        try:
            s.connect("\0sandfarm-agent")
            s.sendall(request)
            assert s.recv(100) == b""
        except OSError as e:
            assert not isinstance(e, TimeoutError), "the agent waits for more"
held = []
for _ in range(600):
    s = socket.socket(socket.AF_UNIX)
    s.setblocking(False)
    s.connect_ex("\0sandfarm-agent")
    held.append(s)
for s in held:
    s.close()
