import sqlite3

# SQLite locks ranges of its file.
with sqlite3.connect("/workspace/data.db") as db:
    db.execute("create table if not exists t (x)")
    db.execute("insert into t values (1)")
db.close()
