"""Writing where the image, the agent and the host's own files lie: by their names, by links through /proc, and by changing their modes."""

import os

for path in ("/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/etc/ld.so.preload", "/usr/bin/python3", "/bin/sh", "/sandfarm/agent", "/lib/x", "/opt/python/bin/python",
             "/root/x", "/var/x", "/sandfarm/x", "/x", "/boot/x", "/sys/x", "/.dockerenv"):
    for name in (path, f"/proc/self/root{path}", f"/proc/self/cwd/..{path}", f"/proc/thread-self/root{path}"):
        for flags in (os.O_WRONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_TRUNC):
            try:
                os.close(os.open(name, flags, 0o666))
            except OSError:
                continue
            raise AssertionError(f"{name} was opened for writing")
    for change in (lambda p: os.chmod(p, 0o777), lambda p: os.chown(p, os.getuid(), -1), os.unlink, lambda p: os.rename(p, "/tmp/taken"), lambda p: os.setxattr(p, "user.x", b"x"), lambda p: os.utime(p, (0, 0))):
        try:
            change(path)
        except OSError:
            continue
        raise AssertionError(f"{path} was changed")
