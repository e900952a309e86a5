"""Files of /proc and /sys that tell about the host's hardware and about other containers. They are masked: empty, or not there."""

import os

for path in ("/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/interrupts", "/proc/acpi", "/proc/scsi",
             "/proc/asound", "/proc/mdstat", "/proc/driver", "/proc/bus", "/proc/swaps", "/proc/spl", "/sys/kernel/irq", "/sys/firmware", "/sys/devices/virtual/powercap", "/sys/devices/virtual/nvme-subsystem", "/sys/devices/virtual/nvme-fabrics", "/sys/hypervisor", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/pagetypeinfo", "/proc/iomem", "/proc/kpagecount", "/proc/kpageflags"):
    try:
        if os.path.isdir(path):
            assert not os.listdir(path), path
        else:
            with open(path, "rb") as f:
                text = f.read(4096)
            assert not text or path == "/proc/swaps" and text.count(b"\n") == 1 or path == "/proc/iomem" and all(line.split()[0] == b"00000000-00000000" for line in text.splitlines()), (path, text[:100])
    except OSError:
        pass
for folder, shown in ("/sys/devices", ("system", "virtual")), ("/sys/devices/virtual", ("net",)):
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        assert name in shown or not os.path.isdir(path) or not os.listdir(path), path
