package engine

import (
	"fmt"
	"os"
	"path"
	"slices"
)

// deviceTree is where Linux describes the host's devices: disks with their serial numbers, buses, firmware.
const deviceTree = "/sys/devices"

// shownDevices are the parts of deviceTree that programs need: cores and memory, and the loopback interface.
func shownDevices() []string { return []string{"system", "virtual"} }

// hostDevices lists the parts of a tree of devices that sandboxes do not see, by name. They differ from host to host (pci0000:00, platform,
// …), so they are read where this process runs: on the engine's host, or else on a host that may be like it. None if it cannot be read.
func hostDevices(tree string) []string {
	entries, _ := os.ReadDir(tree) // sorted
	var list []string
	for _, entry := range entries {
		if entry.IsDir() && !slices.Contains(shownDevices(), entry.Name()) {
			list = append(list, path.Join(deviceTree, entry.Name()))
		}
	}
	return list
}

// maskedPaths begins with the list of engine 28. Older engines mask fewer paths, and this list replaces theirs. Paths that do not exist
// are ignored.
func maskedPaths(cpus int, devices []string) []string {
	paths := []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	for i := range cpus {
		paths = append(paths, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", i))
	}
	// users of the host that have keys; files of loop devices; maker and name of the machine
	paths = append(paths, "/proc/key-users", "/sys/devices/virtual/block", "/sys/devices/virtual/dmi")
	// how the host was started and built, its disks with what is written to them, the file locks of all, and
	// what waits for its resources, where anybody could have the kernel watch for it
	paths = append(paths, "/proc/cmdline", "/proc/config.gz", "/proc/diskstats", "/proc/fs", "/proc/locks", "/proc/partitions", "/proc/pressure", "/sys/fs/btrfs", "/sys/fs/ext4", "/sys/fs/xfs")
	return append(paths, devices...)
}
