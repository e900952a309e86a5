import sys

print("one")
print("two", file=sys.stderr)
