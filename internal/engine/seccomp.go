package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// seccompProfile is moby's default profile without calls that connect sandboxes or expose much of the kernel: keyrings (shared between
// containers by uid), io_uring, userfaultfd, and calls of 32-bit programs, whose socketcall bypasses the rules on socket families; and
// without what the kernel counts for the whole host and charges to no cgroup (docs/security.md has the table). A call that no rule allows
// fails with EPERM. Where programs ask whether the kernel has a feature, the answer is that of a kernel without it: see absent.
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
	profile.Syscalls = slices.Concat(profile.Syscalls, restricted(), sockets(), socketOptions(), controls(), absent())
	if netlink {
		profile.Syscalls = append(profile.Syscalls, allow([]string{"socket"}, within(0, unix.AF_NETLINK, 1)))
	} else { // ZeroMQ continues after this error; it aborts at EAFNOSUPPORT
		profile.Syscalls = append(profile.Syscalls, fail(unix.EOPNOTSUPP, []string{"socket"}, is(0, unix.AF_NETLINK)))
	}
	data, err := json.Marshal(profile)
	return string(data), err
}

// denied reports whether a system call is removed from the default profile, also if a later version allows it.
func denied(name string) bool {
	switch name {
	case "keyctl", "add_key", "request_key", "userfaultfd", "socketcall",
		"rt_sigqueueinfo", "rt_tgsigqueueinfo": // they forge the origin of a signal: Go treats such a SIGSEGV as its own and crashes
		return true
	case "socket", "socketpair", "setsockopt", "fcntl", "fcntl64", "pidfd_send_signal", "prlimit64", "setpriority", "sched_setscheduler", "sched_setparam", "sched_setattr",
		"prctl", "setrlimit", "ioctl":
		return true // restricted, sockets, socketOptions and controls allow a part of each
	case "seccomp", "io_setup", "sync", "syncfs":
		return true // absent answers them
	}
	return strings.HasPrefix(name, "io_uring_")
}

// restricted allows a part of each call that could reach the agent or the host. seccomp compares 64 bits, but the kernel
// reads the lower 32: an argument with an upper bit set would pass a rule that allows "more than" or "not" a value. So each rule names
// what it allows, without upper bits.
func restricted() []*seccomp.Syscall {
	rules := []*seccomp.Syscall{
		allow([]string{"prlimit64"}, is(2, 0)),                                             // reading limits,
		allow([]string{"setpriority"}, is(0, 0), is(1, 0)),                                 // PRIO_PROCESS, own
		allow([]string{"pidfd_send_signal"}, is(2, 0)),                                     // without a forged origin
		allow([]string{"sched_setscheduler", "sched_setparam", "sched_setattr"}, is(0, 0)), // own,
		allow([]string{"sched_setscheduler"}, is(1, 0)),                                    // or the default scheduler: ZeroMQ sets it for each of its threads
	}
	// or setting its own, except that of core files (RLIMIT_CORE, 4), see absent.
	for _, r := range [][2]uint64{{0, 4}, {5, 1}, {6, 2}, {8, 8}} {
		rules = append(rules, allow([]string{"prlimit64"}, is(0, 0), within(1, r[0], r[1])), allow([]string{"setrlimit"}, within(0, r[0], r[1])))
	}
	// The commands of fcntl except F_SETSIG (10), which can send any signal to any process of the same uid.
	for _, r := range [][2]uint64{{0, 8}, {8, 2}, {11, 1}, {12, 4}, {16, 16}, {32, 32}, {1024, 64}} {
		rules = append(rules, allow([]string{"fcntl", "fcntl64"}, within(1, r[0], r[1])))
	}
	// The options of prctl except PR_SET_SECCOMP (22), see absent, and PR_SCHED_CORE (62), which slows the scheduler of the whole host.
	// The last ones name memory and permit a debugger.
	for _, r := range [][2]uint64{{0, 16}, {16, 4}, {20, 2}, {23, 1}, {24, 8}, {32, 16}, {48, 8}, {56, 4}, {60, 2}, {63, 1}, {64, 64}, {unix.PR_SET_VMA, 1}, {unix.PR_SET_PTRACER, 1}} {
		rules = append(rules, allow([]string{"prctl"}, within(0, r[0], r[1])))
	}
	return rules
}

// sockets allows what code without a network needs: AF_UNIX, and TCP, UDP and ping of AF_INET and AF_INET6. Other protocols load
// modules into the host's kernel, or have memory that is charged to no cgroup. The kernel looks for a module for each type that does not go
// with a protocol, too, and for AF_UNSPEC, and starts modprobe as root for it.
func sockets() []*seccomp.Syscall {
	const flags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	rules := []*seccomp.Syscall{
		allow([]string{"socket", "socketpair"}, is(0, unix.AF_UNIX)),
		fail(unix.EAFNOSUPPORT, []string{"socket", "socketpair"}, is(0, unix.AF_UNSPEC)),
	}
	for _, s := range []struct{ family, kind, protocol uint64 }{
		{unix.AF_INET, unix.SOCK_STREAM, 0},
		{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP},
		{unix.AF_INET, unix.SOCK_DGRAM, 0},
		{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP},
		{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
		{unix.AF_INET6, unix.SOCK_STREAM, 0},
		{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP},
		{unix.AF_INET6, unix.SOCK_DGRAM, 0},
		{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP},
		{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6},
	} {
		kind := specs.LinuxSeccompArg{Index: 1, Value: ^uint64(flags), ValueTwo: s.kind, Op: specs.OpMaskedEqual}
		rules = append(rules, allow([]string{"socket"}, is(0, s.family), kind, is(2, s.protocol)))
	}
	return rules
}

// controls allows the commands of ioctl, except those for which the kernel starts modprobe before it asks who calls: a terminal's line
// discipline (TIOCSETD), bridges and VLANs.
func controls() []*seccomp.Syscall {
	var rules []*seccomp.Syscall
	add := func(first, size uint64) { rules = append(rules, allow([]string{"ioctl"}, within(1, first, size))) }
	from := uint64(0)
	for _, hole := range [][2]uint64{ // first, and the one behind the last
		{unix.TIOCSETD, unix.TIOCSETD + 1},
		{unix.SIOCGIFBR, unix.SIOCSIFBR + 1},
		{unix.SIOCADDDLCI, unix.SIOCSIFVLAN + 1},
		{unix.SIOCBRADDBR, unix.SIOCBRDELIF + 1},
		{1 << 31, 0},
	} {
		for from < hole[0] { // in blocks that within can name
			size := from & -from
			if size == 0 {
				size = 1 << 31
			}
			for from+size > hole[0] {
				size /= 2
			}
			add(from, size)
			from += size
		}
		from = hole[1]
	}
	add(1<<31, 1<<31)
	add(^uint64(1<<31-1), 1<<31) // the same with their sign, as programs with musl pass them
	return rules
}

// socketOptions allows the options of sockets, except those whose memory is charged to no cgroup, 128 KiB or more for each socket:
// filters, multicast groups, keys of TCP; those that let an unaccepted connection keep more data than the system's default; and labels
// of flows, of which the host has 4096.
func socketOptions() []*seccomp.Syscall {
	var rules []*seccomp.Syscall
	// Levels without exceptions: all but IPPROTO_IP (0), SOL_SOCKET (1), IPPROTO_TCP (6) and IPPROTO_IPV6 (41).
	for _, r := range [][2]uint64{{2, 2}, {4, 2}, {7, 1}, {8, 8}, {16, 16}, {32, 8}, {40, 1}, {42, 2}, {44, 4}, {48, 16}, {64, 64}, {128, 128}, {256, 256}} {
		rules = append(rules, allow([]string{"setsockopt"}, within(1, r[0], r[1])))
	}
	for _, level := range []struct { // in an order: a proxy compares the profile
		number  uint64
		options [][2]uint64
	}{
		// not IP_ADD_MEMBERSHIP (35), IP_ADD_SOURCE_MEMBERSHIP (39), IP_MSFILTER (41), MCAST_JOIN_GROUP (42), MCAST_JOIN_SOURCE_GROUP (46), MCAST_MSFILTER (48)
		{unix.IPPROTO_IP, [][2]uint64{{0, 32}, {32, 2}, {34, 1}, {36, 2}, {38, 1}, {40, 1}, {43, 1}, {44, 2}, {47, 1}, {49, 1}, {50, 2}, {52, 4}, {56, 8}}},
		// not SO_RCVBUF (8), SO_RCVLOWAT (18), SO_ATTACH_FILTER (26), SO_ATTACH_BPF (50), SO_ATTACH_REUSEPORT_CBPF (51) and _EBPF (52)
		{unix.SOL_SOCKET, [][2]uint64{{0, 8}, {9, 1}, {10, 2}, {12, 4}, {16, 2}, {19, 1}, {20, 4}, {24, 2}, {27, 1}, {28, 4}, {32, 16}, {48, 2}, {53, 1}, {54, 2}, {56, 8}, {64, 64}}},
		// not TCP_MD5SIG (14), TCP_MD5SIG_EXT (32), TCP_AO_ADD_KEY to TCP_AO_REPAIR (38 to 42)
		{unix.IPPROTO_TCP, [][2]uint64{{0, 8}, {8, 4}, {12, 2}, {15, 1}, {16, 16}, {33, 1}, {34, 2}, {36, 2}, {43, 1}, {44, 4}, {48, 16}}},
		// not IPV6_2292PKTOPTIONS (6), IPV6_JOIN_GROUP (20), IPV6_JOIN_ANYCAST (27), IPV6_FLOWLABEL_MGR (32), and those of multicast, which have the numbers of IP
		{unix.IPPROTO_IPV6, [][2]uint64{{0, 4}, {4, 2}, {7, 1}, {8, 8}, {16, 4}, {21, 1}, {22, 2}, {24, 2}, {26, 1}, {28, 4}, {33, 1}, {34, 2}, {36, 4}, {40, 2}, {43, 1}, {44, 2}, {47, 1}, {49, 1}, {50, 2}, {52, 4}, {56, 8}, {64, 16}}},
	} {
		for _, r := range level.options {
			rules = append(rules, allow([]string{"setsockopt"}, is(1, level.number), within(2, r[0], r[1])))
		}
	}
	return append(rules,
		fail(0, []string{"setsockopt"}, is(1, unix.SOL_SOCKET), is(2, unix.SO_RCVBUF)), // a wish, which is ignored
		fail(unix.ENOPROTOOPT, []string{"setsockopt"}, is(1, unix.SOL_SOCKET), is(2, unix.SO_RCVLOWAT)),
		fail(unix.ENOPROTOOPT, []string{"setsockopt"}, is(1, unix.IPPROTO_TCP), is(2, unix.TCP_MD5SIG)))
}

// absent answers calls as a kernel without the feature does, so that programs continue without it.
func absent() []*seccomp.Syscall {
	return []*seccomp.Syscall{
		// A filter of system calls is compiled into memory that has one limit for the host (bpf_jit_limit). Beyond it no container starts.
		fail(unix.ENOSYS, []string{"seccomp"}),
		fail(unix.EINVAL, []string{"prctl"}, is(0, unix.PR_SET_SECCOMP)),
		// The host's requests of asynchronous reads and writes are limited together (fs.aio-max-nr).
		fail(unix.ENOSYS, []string{"io_setup"}),
		// They write what all programs of the host have not written yet. A sandbox has no disk, so they succeed without effect.
		fail(0, []string{"sync", "syncfs"}),
		// The limit on core files stays as the engine set it, at which the kernel starts no program of the host for a crash.
		fail(0, []string{"prlimit64"}, is(0, 0), is(1, unix.RLIMIT_CORE), over(2, 0)),
		fail(0, []string{"setrlimit"}, is(0, unix.RLIMIT_CORE)),
	}
}

// fail is a rule by which calls have no effect and return an error, or success for 0.
func fail(errno syscall.Errno, names []string, when ...specs.LinuxSeccompArg) *seccomp.Syscall {
	number := uint(errno)
	return &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: names, Action: specs.ActErrno, ErrnoRet: &number, Args: when}}
}

// allow is a rule that allows calls when all conditions hold.
func allow(names []string, when ...specs.LinuxSeccompArg) *seccomp.Syscall {
	return &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: names, Action: specs.ActAllow, Args: when}}
}

// is is the condition that an argument is a value.
func is(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

// over is the condition that an argument, of which the kernel reads all 64 bits, is larger than a value. (libseccomp does not match
// "not equal" where another rule asks for "equal".)
func over(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpGreaterThan}
}

// within is the condition that an argument is one of size values, from first; size is a power of two that divides first.
func within(index uint, first, size uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: ^(size - 1), ValueTwo: first, Op: specs.OpMaskedEqual}
}
