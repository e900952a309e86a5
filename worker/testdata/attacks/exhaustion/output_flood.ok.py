for number in range(2000):
    print("line", number)
