import shutil

shutil.rmtree("crowd", ignore_errors=True)
with open("one_of_few", "w") as f:
    f.write("x")
