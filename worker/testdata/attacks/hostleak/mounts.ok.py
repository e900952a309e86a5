import shutil

assert shutil.disk_usage("/workspace").total > 0
