"""Function calling with the openai package: the model gets a tool that runs Python in a sandbox."""

import json

from openai import OpenAI

from sandfarm import JobError, Sandbox

TOOL = {
    "type": "function",
    "function": {
        "name": "run_python",
        "description": "Runs Python code and returns its output. Variables are kept between calls.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}


def ask(question: str) -> str:
    client = OpenAI()
    messages = [{"role": "user", "content": question}]
    with Sandbox(ttl=900) as box:
        for _ in range(10):
            completion = client.chat.completions.create(model="gpt-4.1-mini", messages=messages, tools=[TOOL])
            message = completion.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                try:
                    output = str(box.run(json.loads(call.function.arguments)["code"], timeout=60))
                except JobError as error:  # such as a timeout: the model reads why, and the output until then
                    output = f"{error}\n{error.result or ''}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    raise RuntimeError("the model gave no answer in 10 turns")


if __name__ == "__main__":
    print(ask("What is the median of 3, 1 and 2?"))
