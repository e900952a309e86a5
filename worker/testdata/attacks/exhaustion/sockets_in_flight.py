"""Descriptors that are sent and never received stay open without counting as anybody's: a pair of sockets, within a pair, within a pair."""
# alone: true
# runtime: runc

import array
import socket
import time

held, refused = [], 0
for _ in range(400):
    a, b = socket.socketpair()
    try:
        for _ in range(40):
            a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [a.fileno(), b.fileno()] * 60))])
    except OSError:
        refused += 1
    held.append((a, b))
    if len(held) > 40:
        one, other = held.pop(0)
        one.close()
        other.close()
assert refused, "the kernel counted none of them"

for a, b in held:
    a.close()
    b.close()
for _ in range(300):  # the host's kernel frees them a little later
    a, b = socket.socketpair()
    try:
        socket.send_fds(a, [b"x"], [0])
        break
    except OSError:
        time.sleep(0.1)
else:
    raise AssertionError("what was closed is still counted")
