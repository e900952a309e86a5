"""Measures E2B's SDK: creates from a warm pool, and print(1) by run_code beside the same by the farm's own REST, which take turns in one
sandbox. Prints seconds as JSON."""

import json
import os
import sys
import time

import httpx
from e2b_code_interpreter import Sandbox

creates, pairs = int(sys.argv[1]), int(sys.argv[2])
rest = httpx.Client(base_url=os.environ["E2B_API_URL"].removesuffix("/e2b"))


def timed(call):
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def own(path):
    job = rest.post(path, json={"code": "print(1)"}, timeout=60).raise_for_status().json()
    assert job["result"]["stdout"] == "1\n", job


made = []
for _ in range(creates + 1):
    took, box = timed(lambda: Sandbox.create(timeout=120))
    made.append(took)
    box.kill()
box = Sandbox.create(timeout=600)
path = f"/v1/sandboxes/sbx_{box.sandbox_id.removeprefix('sbx')}/execute?wait=30"
by_sdk, by_rest = [], []
for n in range(pairs + 20):
    took, ran = timed(lambda: box.run_code("print(1)"))
    assert ran.logs.stdout == ["1\n"], ran
    other, _ = timed(lambda: own(path))
    if n >= 20:  # warm
        by_sdk.append(took)
        by_rest.append(other)
box.kill()
print(json.dumps({"create": made[1:], "sdk": by_sdk, "rest": by_rest}))
