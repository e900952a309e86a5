"""The loop of a coding agent: run what a model writes, and hand back what it needs to mend it."""

from sandfarm import Sandbox

# What a model might answer, one after the other; the second has read the first one's error.
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
