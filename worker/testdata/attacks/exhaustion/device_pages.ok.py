import asyncio
import os
import shutil
import socket
import subprocess
import threading

with open("big", "wb") as f:
    f.write(os.urandom(1 << 20))
shutil.copyfile("big", "copy")
subprocess.run(["cp", "copy", "other"], check=True)
with open("big", "rb") as f, socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
    peer = server.accept()[0]
    sender = threading.Thread(target=lambda: (one.sendfile(f), one.shutdown(socket.SHUT_WR)))
    sender.start()
    got = b""
    while part := peer.recv(1 << 16):
        got += part
    sender.join()
    peer.close()


async def serve():
    async def answer(reader, writer):
        with open("big", "rb") as f:
            await asyncio.get_running_loop().sendfile(writer.transport, f)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    text = await reader.read()
    writer.close()
    server.close()
    return text


received = await serve()
whole = open("big", "rb").read()
assert got == whole == open("other", "rb").read() == received
for name in ("big", "copy", "other"):
    os.remove(name)
