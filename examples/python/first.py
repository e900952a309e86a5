"""A sandbox with a package. Variables are kept between runs, and every file that the code creates can be downloaded."""

from sandfarm import Sandbox

with Sandbox(packages=["humanize"]) as box:
    box.run("import humanize, datetime")
    print(box.run("humanize.naturaldelta(datetime.timedelta(days=400))"))
    result = box.run("open('answer.txt', 'w').write(str(6 * 7)); None")
    for artifact in result.artifacts:
        print(artifact.path, box.artifacts.read(artifact).decode())
