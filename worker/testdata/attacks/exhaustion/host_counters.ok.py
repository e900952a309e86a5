import asyncio
import concurrent.futures
import multiprocessing
import os
import resource
import socket
import ssl
import subprocess
import threading

# What ordinary programs do next to the closed calls: it works, or says so as on a kernel without the feature.
assert os.listdir("/sys/class/net") == ["lo"]
try:
    socket.if_nameindex()
    raise AssertionError("interfaces were listed by netlink")
except OSError:
    pass
assert socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)[0][4][0] in ("127.0.0.1", "::1")
os.sync()
with open("kept.txt", "w") as f:
    f.write("kept")
    f.flush()
    os.fsync(f.fileno())
assert open("kept.txt").read() == "kept"
resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
threading.current_thread().name = "named"
with socket.socket() as one:
    for level, option in ((socket.SOL_SOCKET, socket.SO_RCVBUF), (socket.SOL_SOCKET, socket.SO_SNDBUF)):
        one.setsockopt(level, option, 1 << 20)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8)


async def echo():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    await asyncio.open_connection(*server.sockets[0].getsockname())
    await (await asyncio.create_subprocess_exec("true")).wait()
    server.close()


thread = threading.Thread(target=lambda: asyncio.run(echo()))
thread.start()
thread.join()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
with concurrent.futures.ThreadPoolExecutor() as pool:
    assert list(pool.map(abs, [-1])) == [1]
assert subprocess.run(["sh", "-c", "kill -SEGV $$"]).returncode == -11
ssl.create_default_context()
