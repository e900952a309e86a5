import time
import urllib.error
import urllib.request

for _ in range(100):  # after a flood: the rate recovers by itself
    try:
        with urllib.request.urlopen("http://api.good.test/", timeout=30) as answer:
            assert answer.status == 200
            break
    except urllib.error.HTTPError as e:
        assert e.code == 429
        time.sleep(0.2)
else:
    raise AssertionError("it is refused for good")
