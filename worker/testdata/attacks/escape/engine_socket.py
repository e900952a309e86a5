"""Who reaches the socket of the container engine is root on the host. No such socket is here, under no name."""

import os
import socket
import stat

NAMES = ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/podman/podman.sock", "/var/run/dockershim.sock",
         "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/snapd.socket", "/run/udev/control")
for name in NAMES:
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(name)
        except OSError:
            continue
    raise AssertionError(f"{name} answers")
for top in ("/run", "/var", "/sandfarm", "/home", "/srv", "/mnt"):
    for folder, _, files in os.walk(top):
        for name in files:
            path = os.path.join(folder, name)
            try:
                found = stat.S_ISSOCK(os.lstat(path).st_mode)
            except OSError:
                continue
            assert not found, f"a socket at {path}"
