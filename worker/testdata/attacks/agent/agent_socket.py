"""The agent's socket lay where user code could remove it and listen in its place, as the agent for the next worker."""
# sample: true

import os
import socket

try:
    os.unlink("/run/sandfarm/agent.sock")
    raise AssertionError("the socket was removed")
except FileNotFoundError:
    pass
server = socket.socket(socket.AF_UNIX)
try:
    server.bind("\0sandfarm-agent")
    raise AssertionError("the name was taken")
except OSError:
    pass
client = socket.socket(socket.AF_UNIX)
client.connect("\0sandfarm-agent")
try:
    client.settimeout(5)
    client.send(b"GET /v1/info HTTP/1.1\r\n\r\n")
    assert client.recv(1) == b""
except (ConnectionResetError, BrokenPipeError):
    pass
