package engine

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// seccompProfile is moby's default profile without calls that connect sandboxes or expose much of the kernel: keyrings (shared between
// containers by uid), io_uring, userfaultfd, and calls of 32-bit programs, whose socketcall bypasses the rules on socket families. A
// call that no rule allows fails with EPERM. Socket filters and netlink, except for listing interfaces, are denied because the kernel
// does not count their memory against the sandbox.
//
// The profile also protects the agent from user code, which has the same uid: see restricted. Netlink is allowed on request: NCCL,
// which connects GPUs, does not start without it.
func seccompProfile(netlink bool) (string, error) {
	profile := seccomp.DefaultProfile()
	for i := range profile.ArchMap {
		profile.ArchMap[i].SubArches = nil
	}
	for _, rule := range profile.Syscalls {
		rule.Names = slices.DeleteFunc(rule.Names, denied)
	}
	profile.Syscalls = slices.DeleteFunc(profile.Syscalls, func(rule *seccomp.Syscall) bool { return len(rule.Names) == 0 })
	profile.Syscalls = append(profile.Syscalls, append(restricted(), netlinkRule(netlink))...)
	data, err := json.Marshal(profile)
	return string(data), err
}

// denied reports whether a system call is removed from the default profile, also if a later version allows it.
func denied(name string) bool {
	switch name {
	case "keyctl", "add_key", "request_key", "userfaultfd", "socketcall",
		"rt_sigqueueinfo", "rt_tgsigqueueinfo": // they forge the origin of a signal: Go treats such a SIGSEGV as its own and crashes
		return true
	case "socket", "socketpair", "setsockopt", "fcntl", "fcntl64", "pidfd_send_signal", "prlimit64", "setpriority", "sched_setscheduler", "sched_setparam", "sched_setattr":
		return true // restricted allows a part of each
	}
	return strings.HasPrefix(name, "io_uring_")
}

// restricted allows a part of each call that could reach the agent or denied socket features. seccomp compares 64 bits, but the kernel
// reads the lower 32: an argument with an upper bit set would pass a rule that allows "more than" or "not" a value. So each rule names
// what it allows, without upper bits.
func restricted() []*seccomp.Syscall {
	rules := []*seccomp.Syscall{
		allow([]string{"prlimit64"}, zero(0)),                                             // own limits,
		allow([]string{"prlimit64"}, zero(2)),                                             // or reading only
		allow([]string{"setpriority"}, zero(0), zero(1)),                                  // PRIO_PROCESS, own
		allow([]string{"pidfd_send_signal"}, zero(2)),                                     // without a forged origin
		allow([]string{"sched_setscheduler", "sched_setparam", "sched_setattr"}, zero(0)), // own,
		allow([]string{"sched_setscheduler"}, zero(1)),                                    // or the default scheduler: ZeroMQ sets it for each of its threads
	}
	// The socket families that code without a network needs: AF_UNSPEC, AF_UNIX, AF_INET and AF_INET6.
	for _, r := range [][2]uint64{{0, 2}, {2, 1}, {10, 1}} {
		rules = append(rules, allow([]string{"socket", "socketpair"}, within(0, r[0], r[1])))
	}
	// The levels of setsockopt but SOL_SOCKET (1), and of its options all but SO_ATTACH_FILTER (26), _BPF (50) and _REUSEPORT_CBPF (51).
	for _, r := range [][2]uint64{{0, 1}, {2, 2}, {4, 4}, {8, 8}, {16, 16}, {32, 32}, {64, 64}, {128, 128}, {256, 256}} {
		rules = append(rules, allow([]string{"setsockopt"}, within(1, r[0], r[1])))
	}
	for _, r := range [][2]uint64{{0, 16}, {16, 8}, {24, 2}, {27, 1}, {28, 4}, {32, 16}, {48, 2}, {52, 4}, {56, 8}, {64, 64}} {
		rules = append(rules, allow([]string{"setsockopt"}, within(1, 1, 1), within(2, r[0], r[1])))
	}
	// The commands of fcntl except F_SETSIG (10), which can send any signal to any process of the same uid.
	for _, r := range [][2]uint64{{0, 8}, {8, 2}, {11, 1}, {12, 4}, {16, 16}, {32, 32}, {1024, 64}} {
		rules = append(rules, allow([]string{"fcntl", "fcntl64"}, within(1, r[0], r[1])))
	}
	return rules
}

// netlinkRule is the rule on netlink sockets (AF_NETLINK). Programs list interfaces by NETLINK_ROUTE (0).
func netlinkRule(open bool) *seccomp.Syscall {
	if open {
		return allow([]string{"socket"}, within(0, unix.AF_NETLINK, 1))
	}
	return allow([]string{"socket"}, within(0, unix.AF_NETLINK, 1), zero(2))
}

// allow is a rule that allows calls when all conditions hold.
func allow(names []string, when ...specs.LinuxSeccompArg) *seccomp.Syscall {
	return &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: names, Action: specs.ActAllow, Args: when}}
}

// zero is the condition that an argument is 0.
func zero(index uint) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Op: specs.OpEqualTo}
}

// within is the condition that an argument is one of size values, from first; size is a power of two that divides first.
func within(index uint, first, size uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: ^(size - 1), ValueTwo: first, Op: specs.OpMaskedEqual}
}
