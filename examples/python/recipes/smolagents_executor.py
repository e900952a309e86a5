"""An executor for smolagents: a CodeAgent whose code runs in a sandbox instead of on your machine."""

from smolagents import CodeAgent, LogLevel, OpenAIServerModel
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

from sandfarm import Sandbox


class SandfarmExecutor(RemotePythonExecutor):
    """Runs the code of an agent in a sandbox."""

    def __init__(self, box: Sandbox, logger: AgentLogger) -> None:
        super().__init__([], logger)
        self.box = box

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        result = self.box.run(code, timeout=60)
        if result.error and result.error.name == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(self._deserialize_final_answer(result.error.value), result.stdout, is_final_answer=True)
        if not result.ok:
            raise AgentError(str(result), self.logger)
        return CodeOutput("\n".join(map(str, result.results)), result.stdout, is_final_answer=False)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        self.box.packages.install(additional_imports)
        return additional_imports


def ask(question: str) -> str:
    logger = AgentLogger(level=LogLevel.OFF)
    with Sandbox(ttl=900) as box:
        executor = SandfarmExecutor(box, logger)
        model = OpenAIServerModel("gpt-4.1-mini")
        agent = CodeAgent([], model, executor=executor, max_steps=10, logger=logger)
        return str(agent.run(question))


if __name__ == "__main__":
    print(ask("What is the median of 3, 1 and 2?"))
