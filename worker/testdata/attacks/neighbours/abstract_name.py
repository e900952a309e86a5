"""An abstract socket under a known name: another sandbox that reaches it exchanges data, and descriptors, without any network."""
# check: import socket; s = socket.socket(socket.AF_UNIX); assert s.connect_ex("\0channel-between") != 0; s.bind("\0channel-between"); s.close()

import socket
import time

server = socket.socket(socket.AF_UNIX)
server.bind("\0channel-between")
server.listen()
server.settimeout(1)
try:
    server.accept()
except TimeoutError:
    pass
else:
    raise AssertionError("somebody came")
server.close()
