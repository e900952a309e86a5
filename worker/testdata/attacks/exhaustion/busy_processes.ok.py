total = sum(range(1_000_000))
assert total == 499999500000
