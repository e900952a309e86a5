import os

assert os.statvfs("/workspace").f_bavail > 0
