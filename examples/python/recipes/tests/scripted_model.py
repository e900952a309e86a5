"""A model that follows a script, behind the wire formats of the providers.

It calls the tool with code that fails, reads the error, calls it with the right code, and answers with the tool's output.
It speaks Chat Completions, with tools and without (smolagents), Responses and Messages.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WRONG = "import statistcs\nprint(statistcs.median([3, 1, 2]))"
RIGHT = "import statistics\nmedian = statistics.median([3, 1, 2])\nprint('median', median)"
MISTAKE = "No module named 'statistcs'"


class ScriptedModel:
    """A local HTTP server. `requests` has the bodies that it got, by path; `problems` what was wrong with them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.problems: list[str] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = model.answer(self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(200 if answer else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The next step of the script, in the format of the path."""
        path = path.partition("?")[0]
        self.requests.append((path, body))
        formats = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}
        if path not in formats or body.get("stream"):
            self.problems.append(f"{path}, stream {body.get('stream')}: not in the script")
            return {}
        return formats[path](self, body)

    def step(self, outputs: list[str]) -> tuple[str, str]:
        """The next code, or the final answer, after these outputs of the tool."""
        if not outputs:
            return WRONG, ""
        if len(outputs) == 1:
            if MISTAKE not in outputs[0]:
                self.problems.append(f"the first output does not have the error: {outputs[0]!r}")
            return RIGHT, ""
        return "", f"The tool says: {outputs[1].strip()}"


def _chat(model: ScriptedModel, body: dict[str, Any]) -> dict[str, Any]:
    if "tools" not in body:
        return _completion({"role": "assistant", "content": _thought(model, body["messages"])})
    outputs = [_text(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    code, answer = model.step(outputs)
    message: dict[str, Any] = {"role": "assistant", "content": answer or None}
    if code:
        function = {"name": "run_python", "arguments": json.dumps({"code": code})}
        message["tool_calls"] = [{"id": f"call_{len(outputs)}", "type": "function", "function": function}]
    return _completion(message)


def _thought(model: ScriptedModel, messages: list[dict[str, Any]]) -> str:
    """What an agent writes that calls no tools, but writes code: smolagents."""
    texts = [_text(message["content"]) for message in messages]
    outputs = [text for text in texts if text.startswith(("Observation:", "Call id:", "Error:"))]
    code, answer = model.step(outputs)
    if answer:
        code = "final_answer(f'The tool says: median {median}')"
    return f"Thought: run it.\n<code>\n{code}\n</code>"


def _completion(message: dict[str, Any]) -> dict[str, Any]:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl_1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _responses(model: ScriptedModel, body: dict[str, Any]) -> dict[str, Any]:
    outputs = [_text(item["output"]) for item in body["input"] if item.get("type") == "function_call_output"]
    code, answer = model.step(outputs)
    item: dict[str, Any] = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": answer, "annotations": []}],
    }
    if code:
        arguments, number = json.dumps({"code": code}), len(outputs)
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
        item |= {"name": "run_python", "arguments": arguments}
    tokens = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp_{len(outputs)}",
        "object": "response",
        "created_at": 1,
        "model": "scripted",
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **tokens},
    }


def _messages(model: ScriptedModel, body: dict[str, Any]) -> dict[str, Any]:
    turns = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
    outputs = [_text(block["content"]) for turn in turns for block in turn if block["type"] == "tool_result"]
    code, answer = model.step(outputs)
    block: dict[str, Any] = {"type": "text", "text": answer}
    if code:
        block = {"type": "tool_use", "id": f"toolu_{len(outputs)}", "name": "run_python", "input": {"code": code}}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [block],
        "stop_reason": "tool_use" if code else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _text(content: Any) -> str:
    """The text of a message, which may come in blocks."""
    if isinstance(content, str):
        return content
    return "".join(str(block.get("text") or "") for block in content or ())
