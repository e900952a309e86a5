"""create, execute, result, close with the official Python SDK: sdk.py URL MODE, where MODE is legacy, auto or a revision.

Prints one JSON object with what the client saw. Any surprise ends it with an exception.
"""

import asyncio
import base64
import json
import sys

from mcp import Client
from mcp.client.streamable_http import streamable_http_client

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()\nopen('note.txt', 'w').write('hi')\nprint('drawn')"


async def main(url: str, mode: str) -> dict:
    seen: dict = {"progress": []}

    async def progress(value: float, total: float | None, message: str | None) -> None:
        seen["progress"].append({"value": value, "message": message})

    async with Client(streamable_http_client(url), mode=mode) as client:
        seen["version"] = client.protocol_version
        seen["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)

        async def call(name: str, **arguments) -> object:
            result = await client.call_tool(name, arguments, progress_callback=progress)
            assert not result.is_error, result
            return result

        made = (await call("create_sandbox", ttl_seconds=300)).structured_content
        box = made["sandbox_id"]
        try:
            await call("execute_python_code", sandbox_id=box, code="x = 40")
            seen["kept"] = (await call("execute_python_code", sandbox_id=box, code="x + 2")).structured_content["results"]
            drawn = await call("execute_python_code", sandbox_id=box, code=PLOT)
            seen["blocks"] = [block.type for block in drawn.content]
            images = [base64.b64decode(block.data) for block in drawn.content if block.type == "image"]
            seen["png"] = [image[:8] == b"\x89PNG\r\n\x1a\n" for image in images]
            # A run that outlasts its wait continues as a job; a call that waits for the job reports its output live.
            slow = "import time\nfor i in range(4):\n    print('tick', i, flush=True); time.sleep(0.5)"
            handle = (await call("execute_python_code", sandbox_id=box, code=slow, wait_seconds=0)).structured_content
            seen["handle"] = handle["state"]
            ended = (await call("get_job_result", job_id=handle["job_id"], wait_seconds=45)).structured_content
            seen["result"] = {"state": ended["state"], "stdout": ended["stdout"]}
            bad = await client.call_tool("execute_python_code", {"sandbox_id": box})
            seen["error"] = {"is_error": bad.is_error, "text": bad.content[0].text}
        finally:
            closed = await call("close_sandbox", sandbox_id=box)
        seen["closed"] = closed.structured_content["state"]
    return seen


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
