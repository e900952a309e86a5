"""Numbers that identify the host: serial numbers of the firmware, the machine's id, ids of keys and certificates."""

for path in ("/sys/class/dmi/id/product_serial", "/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/board_serial", "/sys/class/dmi/id/chassis_serial",
             "/sys/firmware/dmi/tables/DMI", "/sys/firmware/efi/efivars", "/sys/hypervisor/uuid", "/etc/ssh/ssh_host_rsa_key", "/var/lib/cloud/data/instance-id", "/run/cloud-init/instance-data.json"):
    try:
        with open(path, "rb") as f:
            assert not f.read(16).strip(), path
    except OSError:
        pass
try:
    assert len(open("/etc/machine-id").read().strip()) in (0, 32)  # that of the image, if any
except OSError:
    pass
