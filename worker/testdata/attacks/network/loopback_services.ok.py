import http.server
import threading
import urllib.request

server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=server.handle_request).start()
try:
    urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=10)
except urllib.error.HTTPError as e:
    assert e.code == 501
server.server_close()
