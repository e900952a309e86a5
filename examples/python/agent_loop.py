"""The loop of a coding agent: run the code of a model, and return the error so that the model can correct it."""

from sandfarm import Sandbox

# The answers of a model: the second one corrects the error of the first.
ANSWERS = [
    "import statistcs\nprint(statistcs.median([3, 1, 2]))",
    "import statistics\nprint(statistics.median([3, 1, 2]))",
]

with Sandbox(ttl=600) as box:
    for attempt, code in enumerate(ANSWERS, start=1):
        result = box.run(code, timeout=30)
        if result.ok:
            print(f"attempt {attempt}: {result}")
            break
        print(f"attempt {attempt}: {result.error}")
