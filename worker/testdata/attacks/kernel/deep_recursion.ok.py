def depth(n):
    return depth(n - 1) + 1 if n else 0


assert depth(500) == 500
