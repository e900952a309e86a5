import os
import sqlite3

with open("kept.txt", "w") as f:
    f.write("here")
    f.flush()
    os.fsync(f.fileno())
    os.fdatasync(f.fileno())
assert open("kept.txt").read() == "here"
db = sqlite3.connect("kept.db")
db.execute("PRAGMA synchronous = FULL")
db.execute("CREATE TABLE t (n)")
for n in range(10):
    with db:
        db.execute("INSERT INTO t VALUES (?)", (n,))
assert db.execute("SELECT sum(n) FROM t").fetchone() == (45,)
db.close()
os.remove("kept.txt")
os.remove("kept.db")
