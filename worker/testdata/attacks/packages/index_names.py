"""Names of projects and files that are paths, addresses, options, or longer than any: each answer is an error of the index, at once."""
# timeout: 60

import http.client

for name in ("..%2f..%2fetc%2fpasswd", "%00", "a" * 5000, "-r", "--index-url", "a%0d%0aHost:%20evil", "..", "%2e%2e", "a/../../b", "a%5c..%5cb", "%ff%fe", "six;rm", "six?x=http://10.0.0.1", "six%3Fx", "%C0%AE%C0%AE", "a" * 100 + "%2f" * 100):
    for path in (f"/pypi/simple/{name}/", f"/pypi/files/{name}", f"/npm/{name}", f"/npm/@{name}/{name}"):
        connection = http.client.HTTPConnection("127.0.0.1", 3141, timeout=30)
        try:
            connection.putrequest("GET", path, skip_host=True)
            connection.putheader("Host", "127.0.0.1:3141")
            connection.endheaders()
            answer = connection.getresponse()
            text = answer.read(100_000)
        except (http.client.HTTPException, OSError, ValueError):
            continue
        finally:
            connection.close()
        assert b"root:x:" not in text, (path, text)
        assert answer.status >= 400 or name.startswith("six"), (path, answer.status, text[:200])
