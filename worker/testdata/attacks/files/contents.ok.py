import zipfile

with zipfile.ZipFile("good.zip", "w") as z:
    z.writestr("a.txt", "x")
assert zipfile.ZipFile("good.zip").namelist() == ["a.txt"]
