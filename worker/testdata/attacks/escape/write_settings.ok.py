assert int(open("/proc/sys/kernel/pid_max").read()) > 0
