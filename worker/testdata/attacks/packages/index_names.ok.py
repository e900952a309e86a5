import http.client

connection = http.client.HTTPConnection("127.0.0.1", 3141, timeout=30)
connection.request("GET", "/nothing")
assert connection.getresponse().status == 404
connection.close()
