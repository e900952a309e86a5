import shutil
import zipfile

shutil.rmtree("/tmp/target", ignore_errors=True)
with zipfile.ZipFile("/tmp/fine.zip", "w") as z:
    z.writestr("a/b.txt", "x")
zipfile.ZipFile("/tmp/fine.zip").extractall("/tmp/fine")
