import shutil

shutil.rmtree("names")
with open("résumé 2.txt", "w") as f:
    f.write("x")
