with open("still", "w") as f:
    f.write("x" * 1000)
