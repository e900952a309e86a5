"""A named pipe in the workspace makes who opens it wait for ever; sockets and links to devices have no end."""
# reads: waiting listening endless

import os
import socket

if not os.path.lexists("waiting"):
    os.mkfifo("waiting")
    os.symlink("/dev/zero", "endless")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("listening")
