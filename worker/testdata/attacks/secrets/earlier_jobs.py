"""What an earlier job of this sandbox was given for itself alone, such as its environment, in what it left behind: the kernel's variables,
files of code, and pipes."""
# env: ONLY_FOR_ONE=mark-7f3a

import os

assert os.environ.pop("ONLY_FOR_ONE") == "mark-7f3a"
