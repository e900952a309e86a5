import os

assert "API_TOKEN" in open("/proc/self/environ").read() and os.environ["API_TOKEN"]
