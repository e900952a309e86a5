print("an ordinary answer")
