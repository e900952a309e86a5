print("quiet")
