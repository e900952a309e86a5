import os
import pwd

assert os.getuid() == os.geteuid()
assert pwd.getpwuid(os.getuid()).pw_dir
