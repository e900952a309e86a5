"""A tool for the OpenAI Agents SDK that runs Python in a sandbox."""

import asyncio

from agents import Agent, Runner, function_tool

from sandfarm import AsyncSandbox, JobError


async def ask(question: str) -> str:
    async with AsyncSandbox(ttl=900) as box:

        @function_tool
        async def run_python(code: str) -> str:
            """Runs Python code and returns its output. Variables are kept between calls."""
            try:
                return str(await box.run(code, timeout=60))
            except JobError as error:  # such as a timeout: the model reads why, and the output until then
                return f"{error}\n{error.result or ''}"

        agent = Agent(name="analyst", model="gpt-4.1-mini", tools=[run_python])
        return (await Runner.run(agent, question, max_turns=10)).final_output


if __name__ == "__main__":
    print(asyncio.run(ask("What is the median of 3, 1 and 2?")))
