"""A sandbox with a package: variables are kept, and every file that code makes can be had."""

from sandfarm import Sandbox

with Sandbox(packages=["humanize"]) as box:
    box.run("import humanize, datetime")
    print(box.run("humanize.naturaldelta(datetime.timedelta(days=400))"))
    result = box.run("open('answer.txt', 'w').write(str(6 * 7)); None")
    for artifact in result.artifacts:
        print(artifact.path, box.artifacts.read(artifact).decode())
