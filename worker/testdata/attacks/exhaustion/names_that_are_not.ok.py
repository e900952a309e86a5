import os

assert not os.path.exists("/tmp/nothing")
