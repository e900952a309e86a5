"""Raises: the traceback goes to stderr, the exit code is 1, and files created before are saved."""

with open("so-far.txt", "w", encoding="utf-8") as file:
    file.write("written before the error\n")

prices = {"apple": 3}
print("the price of a pear is", prices["pear"])
