"""A tool loop with the anthropic package. Claude sees pictures that the code draws, too."""

import base64

import anthropic

from sandfarm import ExecuteResult, JobError, Sandbox

TOOL = {
    "name": "run_python",
    "description": "Runs Python code and returns its output and pictures. Variables are kept between calls.",
    "input_schema": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
}


def blocks(result: ExecuteResult) -> list[dict]:
    content = [{"type": "text", "text": str(result) or "(no output)"}]
    for png in result.images:
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png).decode()}
        content.append({"type": "image", "source": source})
    return content


def ask(question: str) -> str:
    client = anthropic.Anthropic()
    messages = [{"role": "user", "content": question}]
    with Sandbox(ttl=900) as box:
        for _ in range(10):
            answer = client.messages.create(model="claude-sonnet-5", max_tokens=4096, messages=messages, tools=[TOOL])
            if answer.stop_reason != "tool_use":
                return "".join(block.text for block in answer.content if block.type == "text")
            results = []
            for call in (block for block in answer.content if block.type == "tool_use"):
                try:
                    content = blocks(box.run(call.input["code"], timeout=60))
                except JobError as error:  # such as a timeout: the model reads why, and the output until then
                    content = f"{error}\n{error.result or ''}"
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": content})
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    raise RuntimeError("the model gave no answer in 10 turns")


if __name__ == "__main__":
    print(ask("What is the median of 3, 1 and 2?"))
