"""A LangChain tool that runs Python in a sandbox, used by an agent, which is a LangGraph graph."""

from langchain.agents import create_agent
from langchain.tools import tool

from sandfarm import JobError, Sandbox


def ask(question: str) -> str:
    with Sandbox(ttl=900) as box:

        @tool
        def run_python(code: str) -> str:
            """Runs Python code and returns its output. Variables are kept between calls."""
            try:
                return str(box.run(code, timeout=60))
            except JobError as error:  # such as a timeout: the model reads why, and the output until then
                return f"{error}\n{error.result or ''}"

        agent = create_agent("openai:gpt-4.1-mini", tools=[run_python])
        state = agent.invoke({"messages": [{"role": "user", "content": question}]}, {"recursion_limit": 20})
        return state["messages"][-1].text


if __name__ == "__main__":
    print(ask("What is the median of 3, 1 and 2?"))
