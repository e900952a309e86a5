import re

assert re.match(r"a+$", "a" * 1000)
