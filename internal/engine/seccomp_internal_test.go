package engine

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// seccompRule is what the engine reads of a profile.
type seccompRule struct {
	Names  []string
	Action string
	Errno  *uint `json:"errnoRet"`
	Args   []specs.LinuxSeccompArg

	Includes struct{ Arches []string }
}

// holds evaluates a system call as the kernel's filter does: all conditions, on 64 bits.
func (r seccompRule) holds(args [6]uint64) bool {
	for _, c := range r.Args {
		got, ok := args[c.Index], false
		switch c.Op {
		case specs.OpEqualTo:
			ok = got == c.Value
		case specs.OpMaskedEqual:
			ok = got&c.Value == c.ValueTwo
		case specs.OpLessThan:
			ok = got < c.Value
		case specs.OpGreaterThan:
			ok = got > c.Value
		default:
		}
		if !ok {
			return false
		}
	}
	return true
}

func seccompRules(t *testing.T, gpus bool) []seccompRule {
	t.Helper()
	text, err := seccompProfile(gpus)
	testbed.Must(t, err)
	var profile struct {
		DefaultAction string
		ArchMap       []struct{ SubArchitectures []string }
		Syscalls      []seccompRule
	}
	testbed.Must(t, json.Unmarshal([]byte(text), &profile))
	testbed.Diff(t, "default action", "SCMP_ACT_ERRNO", profile.DefaultAction)
	for _, arch := range profile.ArchMap {
		testbed.Check(t, len(arch.SubArchitectures) == 0, "programs of %v may make system calls, too", arch.SubArchitectures)
	}
	return slices.DeleteFunc(profile.Syscalls, func(r seccompRule) bool {
		return len(r.Includes.Arches) > 0 && !slices.Contains(r.Includes.Arches, runtime.GOARCH)
	})
}

// O_DIRECT is another bit for each processor, which on the other one opens directories. The profile has the right one for the engine's.
func TestSeccompProfileOfEachProcessor(t *testing.T) {
	t.Parallel()
	text, err := seccompProfile(false)
	testbed.Must(t, err)
	var profile struct{ Syscalls []seccompRule }
	testbed.Must(t, json.Unmarshal([]byte(text), &profile))
	got := map[string][]uint64{}
	for _, r := range profile.Syscalls {
		if slices.Contains(r.Names, "openat") && r.Action == "SCMP_ACT_ERRNO" {
			got[r.Includes.Arches[0]] = append(got[r.Includes.Arches[0]], r.Args[0].Value)
		}
	}
	testbed.Diff(t, "flags of openat that are refused", map[string][]uint64{"amd64": {0x4000}, "arm64": {0x10000}}, got)
}

// The caller controls the upper half of an argument, and the kernel ignores it.
func TestSeccompProfileJudgesCalls(t *testing.T) {
	t.Parallel()
	rules, withGPU := seccompRules(t, false), seccompRules(t, true)
	const high, null = 1 << 32, 0
	for _, c := range []struct {
		what  string
		name  string
		args  [6]uint64
		allow bool
	}{
		{"read", "read", [6]uint64{3}, true},
		{"keyctl", "keyctl", [6]uint64{}, false},
		{"io_uring", "io_uring_setup", [6]uint64{8}, false},
		{"unix socket", "socket", [6]uint64{1}, true},
		{"IPv6 socket", "socket", [6]uint64{10, 1}, true},
		{"IPv4 socket", "socket", [6]uint64{2, 2}, true},
		{"one with both flags", "socket", [6]uint64{2, 1 | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK}, true},
		{"AF_UNSPEC", "socket", [6]uint64{0, 1}, false},
		{"a pair of AF_UNSPEC", "socketpair", [6]uint64{0, 1}, false},
		{"DCCP by its type alone", "socket", [6]uint64{2, 6}, false},
		{"SCTP by its type alone", "socket", [6]uint64{2, 5}, false},
		{"a raw socket", "socket", [6]uint64{2, 3}, false},
		{"a stream of UDP", "socket", [6]uint64{2, 1, 17}, false},
		{"a type with an upper bit", "socket", [6]uint64{2, high | 1}, false},
		{"ping of IPv6", "socket", [6]uint64{10, 2, 58}, false},
		{"TCGETS", "ioctl", [6]uint64{0, 0x5401}, true},
		{"FIONBIO", "ioctl", [6]uint64{0, 0x5421}, true},
		{"what precedes TIOCSETD", "ioctl", [6]uint64{0, 0x5422}, true},
		{"TIOCSETD", "ioctl", [6]uint64{0, 0x5423}, false},
		{"TIOCSETD with an upper bit", "ioctl", [6]uint64{0, high | 0x5423}, false},
		{"TIOCGETD", "ioctl", [6]uint64{0, 0x5424}, true},
		{"SIOCGSTAMP", "ioctl", [6]uint64{0, 0x8906}, false},
		{"SIOCGSTAMPNS", "ioctl", [6]uint64{0, 0x8907}, false},
		{"SIOCGSTAMP_NEW", "ioctl", [6]uint64{0, 0x80108906}, false},
		{"SIOCGSTAMPNS_NEW with its sign", "ioctl", [6]uint64{0, 0xffffffff80108907}, false},
		{"what follows it", "ioctl", [6]uint64{0, 0xffffffff80108908}, true},
		{"SIOCGIFCONF", "ioctl", [6]uint64{0, 0x8912}, true},
		{"SIOCGIFBR", "ioctl", [6]uint64{0, 0x8940}, false},
		{"SIOCGIFVLAN", "ioctl", [6]uint64{0, 0x8982}, false},
		{"SIOCBRADDBR", "ioctl", [6]uint64{0, 0x89a0}, false},
		{"the first command", "ioctl", [6]uint64{}, true},
		{"FS_IOC_FIEMAP", "ioctl", [6]uint64{3, 0xc020660b}, true},
		{"FS_IOC_GETFSMAP", "ioctl", [6]uint64{3, 0xc0c0583b}, false},
		{"FS_IOC_GETFSMAP with its sign", "ioctl", [6]uint64{3, 0xffffffffc0c0583b}, false},
		{"what precedes those of file systems", "ioctl", [6]uint64{3, 0xc0c057ff}, true},
		{"what follows them", "ioctl", [6]uint64{3, 0xc0c05900}, true},
		{"what precedes those of btrfs", "ioctl", [6]uint64{3, 0x93ff}, true},
		{"what follows those", "ioctl", [6]uint64{3, 0x9500}, true},
		{"BTRFS_IOC_SYNC", "ioctl", [6]uint64{3, 0x9408}, false},
		{"BTRFS_IOC_START_SYNC", "ioctl", [6]uint64{3, 0x80089418}, false},
		{"FICLONE, without which Python's Path.copy fails", "ioctl", [6]uint64{3, 0x40049409}, true},
		{"FIDEDUPERANGE", "ioctl", [6]uint64{3, 0xc0189436}, true},
		{"TIOCGPTN", "ioctl", [6]uint64{0, 0x80045430}, true},
		{"TIOCGPTN with its sign", "ioctl", [6]uint64{0, 0xffffffff80045430}, true},
		{"AF_AX25", "socket", [6]uint64{3}, false},
		{"netlink of another kind", "socket", [6]uint64{16, 3, 15}, false},
		{"netlink with an upper bit in its kind", "socket", [6]uint64{16, 3, high}, false},
		{"TCP by its number", "socket", [6]uint64{2, 1, 6}, true},
		{"UDP of IPv6 by its number", "socket", [6]uint64{10, 2, 17}, true},
		{"ping", "socket", [6]uint64{2, 2, 1}, false},
		{"MPTCP", "socket", [6]uint64{2, 1, 262}, false},
		{"SCTP", "socket", [6]uint64{2, 1, 132}, false},
		{"SCTP with an upper bit", "socket", [6]uint64{2, 1, high | 132}, false},
		{"AF_TIPC", "socket", [6]uint64{30, 1}, false},
		{"AF_SMC", "socket", [6]uint64{43}, false},
		{"pair of unix sockets", "socketpair", [6]uint64{1}, true},
		{"pair of AF_TIPC", "socketpair", [6]uint64{30}, false},
		{"TCP_NODELAY", "setsockopt", [6]uint64{3, 6, 1}, true},
		{"option 26 of TCP", "setsockopt", [6]uint64{3, 6, 26}, true},
		{"SO_REUSEADDR", "setsockopt", [6]uint64{3, 1, 2}, true},
		{"SO_DETACH_FILTER", "setsockopt", [6]uint64{3, 1, 27}, true},
		{"SO_BUSY_POLL_BUDGET", "setsockopt", [6]uint64{3, 1, 70}, true},
		{"SO_ATTACH_FILTER", "setsockopt", [6]uint64{3, 1, 26}, false},
		{"SO_ATTACH_FILTER with upper bits", "setsockopt", [6]uint64{3, high | 1, high | 26}, false},
		{"SO_ATTACH_BPF", "setsockopt", [6]uint64{3, 1, 50}, false},
		{"SO_ATTACH_REUSEPORT_CBPF", "setsockopt", [6]uint64{3, 1, 51}, false},
		{"AF_ALG", "socket", [6]uint64{38}, false},
		{"SO_SNDBUF", "setsockopt", [6]uint64{3, 1, 7}, true},
		{"SO_RCVBUF", "setsockopt", [6]uint64{3, 1, 8}, false},
		{"SO_MAX_PACING_RATE", "setsockopt", [6]uint64{3, 1, 47}, false},
		{"SO_RCVLOWAT", "setsockopt", [6]uint64{3, 1, 18}, false},
		{"SO_RCVTIMEO", "setsockopt", [6]uint64{3, 1, 20}, true},
		{"IP_TOS", "setsockopt", [6]uint64{3, 0, 1}, true},
		{"IP_MULTICAST_TTL", "setsockopt", [6]uint64{3, 0, 33}, true},
		{"IP_ADD_MEMBERSHIP", "setsockopt", [6]uint64{3, 0, 35}, false},
		{"IP_MSFILTER", "setsockopt", [6]uint64{3, 0, 41}, false},
		{"MCAST_JOIN_SOURCE_GROUP", "setsockopt", [6]uint64{3, 0, 46}, false},
		{"TCP_QUICKACK", "setsockopt", [6]uint64{3, 6, 12}, true},
		{"TCP_USER_TIMEOUT", "setsockopt", [6]uint64{3, 6, 18}, true},
		{"TCP_MD5SIG", "setsockopt", [6]uint64{3, 6, 14}, false},
		{"TCP_MD5SIG_EXT", "setsockopt", [6]uint64{3, 6, 32}, false},
		{"TCP_AO_ADD_KEY", "setsockopt", [6]uint64{3, 6, 38}, false},
		{"IPV6_V6ONLY", "setsockopt", [6]uint64{3, 41, 26}, true},
		{"IPV6_TCLASS", "setsockopt", [6]uint64{3, 41, 67}, true},
		{"IPV6_JOIN_GROUP", "setsockopt", [6]uint64{3, 41, 20}, false},
		{"IPV6_JOIN_GROUP with upper bits", "setsockopt", [6]uint64{3, high | 41, high | 20}, false},
		{"IPV6_2292PKTOPTIONS", "setsockopt", [6]uint64{3, 41, 6}, false},
		{"IPV6_FLOWLABEL_MGR", "setsockopt", [6]uint64{3, 41, 32}, false},
		{"MCAST_MSFILTER of IPv6", "setsockopt", [6]uint64{3, 41, 48}, false},
		{"UDP_SEGMENT", "setsockopt", [6]uint64{3, 17, 103}, true},
		{"UDP_CORK", "setsockopt", [6]uint64{3, 17, 1}, false},
		{"UDP_CORK with upper bits", "setsockopt", [6]uint64{3, high | 17, high | 1}, false},
		{"UDP_ENCAP", "setsockopt", [6]uint64{3, 17, 100}, false},
		{"UDP_CORK by the level of UDP-Lite", "setsockopt", [6]uint64{3, 136, 1}, false},
		{"the level of netlink", "setsockopt", [6]uint64{3, 270, 11}, true},
		{"another level", "setsockopt", [6]uint64{3, 271, 1}, false},
		{"FADV_SEQUENTIAL", "fadvise64", [6]uint64{3, 0, 0, 2}, true},
		{"FADV_DONTNEED", "fadvise64", [6]uint64{3, 0, 0, 4}, false},
		{"FADV_DONTNEED with an upper bit", "fadvise64", [6]uint64{3, 0, 0, high | 4}, false},
		{"cachestat", "cachestat", [6]uint64{3}, false},
		{"IP_RECVTTL", "setsockopt", [6]uint64{3, 0, 12}, true},
		{"SO_TIMESTAMP", "setsockopt", [6]uint64{3, 1, 29}, false},
		{"SO_TIMESTAMPNS_NEW", "setsockopt", [6]uint64{3, 1, 64}, false},
		{"UDP_GRO", "setsockopt", [6]uint64{3, 17, 104}, false},
		{"IP_MINTTL", "setsockopt", [6]uint64{3, 0, 21}, false},
		{"TCP_TX_DELAY", "setsockopt", [6]uint64{3, 6, 37}, false},
		{"IPV6_MINHOPCOUNT", "setsockopt", [6]uint64{3, 41, 73}, false},
		{"reading SO_TYPE", "getsockopt", [6]uint64{3, 1, 3}, true},
		{"reading TCP_INFO", "getsockopt", [6]uint64{3, 6, 11}, true},
		{"TCP_ZEROCOPY_RECEIVE", "getsockopt", [6]uint64{3, 6, 35}, false},
		{"TCP_ZEROCOPY_RECEIVE with upper bits", "getsockopt", [6]uint64{3, high | 6, high | 35}, false},
		{"splice", "splice", [6]uint64{3, 0, 4, 0, 4096}, false},
		{"sendfile", "sendfile", [6]uint64{3, 4, 0, 4096}, false},
		{"vmsplice", "vmsplice", [6]uint64{3}, true},
		{"memfd_secret", "memfd_secret", [6]uint64{}, false},
		{"memfd_create", "memfd_create", [6]uint64{}, true},
		{"SO_TIMESTAMPING", "setsockopt", [6]uint64{3, 1, 37}, false},
		{"SO_TIMESTAMPING_NEW", "setsockopt", [6]uint64{3, 1, 65}, false},
		{"SO_RCVTIMEO_NEW", "setsockopt", [6]uint64{3, 1, 66}, true},
		{"SO_ZEROCOPY", "setsockopt", [6]uint64{3, 1, 60}, false},
		{"TCP_ULP", "setsockopt", [6]uint64{3, 6, 31}, false},
		{"sendto", "sendto", [6]uint64{3, 0, 1, unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT}, true},
		{"sendmsg", "sendmsg", [6]uint64{3, 0, unix.MSG_NOSIGNAL}, true},
		{"sendmmsg", "sendmmsg", [6]uint64{3, 0, 1, 0}, true},
		{"own priority of reads", "ioprio_set", [6]uint64{1, 0, 1}, true},
		{"PID 1's priority of reads", "ioprio_set", [6]uint64{1, 1, 1}, false},
		{"the user's priority of reads", "ioprio_set", [6]uint64{3, 0, 1}, false},
		{"seccomp", "seccomp", [6]uint64{1}, false},
		{"PR_SET_SECCOMP", "prctl", [6]uint64{22, 2}, false},
		{"PR_SET_SECCOMP with an upper bit", "prctl", [6]uint64{high | 22, 2}, false},
		{"PR_GET_SECCOMP", "prctl", [6]uint64{21}, true},
		{"PR_SET_NAME", "prctl", [6]uint64{15}, true},
		{"PR_SET_NO_NEW_PRIVS", "prctl", [6]uint64{38, 1}, true},
		{"PR_SCHED_CORE", "prctl", [6]uint64{62, 1}, false},
		{"PR_SET_VMA", "prctl", [6]uint64{0x53564d41}, false},
		{"PR_SET_PTRACER", "prctl", [6]uint64{0x59616d61, 1}, true},
		{"io_setup", "io_setup", [6]uint64{1}, false},
		{"O_RDONLY", "openat", [6]uint64{3, 0x1000, unix.O_CLOEXEC}, true},
		{"O_DIRECT", "openat", [6]uint64{3, 0x1000, unix.O_CLOEXEC | unix.O_DIRECT}, false},
		{"O_DIRECT with an upper bit", "openat", [6]uint64{3, 0x1000, high | unix.O_DIRECT}, false},
		{"O_RDWR", "open", [6]uint64{0x1000, unix.O_RDWR | unix.O_CREAT | unix.O_TMPFILE}, true},
		{"O_DIRECT of open", "open", [6]uint64{0x1000, unix.O_DIRECT}, false},
		{"openat2, without which runc and tar do not go on", "openat2", [6]uint64{3, 0x1000, 0x1000, 24}, true},
		{"O_NONBLOCK later", "fcntl", [6]uint64{3, unix.F_SETFL, unix.O_NONBLOCK}, true},
		{"O_DIRECT later", "fcntl", [6]uint64{3, unix.F_SETFL, unix.O_DIRECT | unix.O_NONBLOCK}, false},
		{"O_DIRECT later with upper bits", "fcntl64", [6]uint64{3, high | unix.F_SETFL, high | unix.O_DIRECT}, false},
		{"a duplicate with the number of O_DIRECT", "fcntl", [6]uint64{3, unix.F_DUPFD, unix.O_DIRECT}, true},
		{"RWF_NOWAIT", "preadv2", [6]uint64{3, 0, 1, 0, 0, unix.RWF_NOWAIT}, true},
		{"RWF_DONTCACHE", "preadv2", [6]uint64{3, 0, 1, 0, 0, 0x80}, false},
		{"sync", "sync", [6]uint64{}, false},
		{"syncfs", "syncfs", [6]uint64{3}, false},
		{"fsync", "fsync", [6]uint64{3}, false},
		{"fdatasync", "fdatasync", [6]uint64{3}, false},
		{"own limit on core files", "prlimit64", [6]uint64{0, 4, 0x1000}, false},
		{"reading the own limit on core files", "prlimit64", [6]uint64{0, 4, null, 0x1000}, true},
		{"limit on core files", "setrlimit", [6]uint64{4, 0x1000}, false},
		{"limit on core files with an upper bit", "setrlimit", [6]uint64{high | 4, 0x1000}, false},
		{"limit on files", "setrlimit", [6]uint64{7, 0x1000}, true},
		{"AF_VSOCK", "socket", [6]uint64{40}, false},
		{"netlink with an upper bit", "socket", [6]uint64{high | 16}, false},
		{"AF_ALG with an upper bit", "socket", [6]uint64{high | 38}, false},
		{"AF_VSOCK with an upper bit", "socket", [6]uint64{high | 40}, false},
		{"F_GETFL", "fcntl", [6]uint64{3, 3}, true},
		{"F_SETOWN", "fcntl", [6]uint64{3, 8}, true},
		{"F_GETSIG", "fcntl", [6]uint64{3, 11}, true},
		{"F_OFD_SETLK", "fcntl", [6]uint64{3, 37}, true},
		{"F_DUPFD_CLOEXEC", "fcntl", [6]uint64{3, 1030}, true},
		{"F_SETPIPE_SZ", "fcntl", [6]uint64{3, 1031}, true},
		{"F_SETSIG", "fcntl", [6]uint64{3, 10}, false},
		{"F_SETSIG of 32 bits", "fcntl64", [6]uint64{3, 10}, false},
		{"F_SETSIG with an upper bit", "fcntl", [6]uint64{3, high | 10}, false},
		{"own limits", "prlimit64", [6]uint64{0, 7, 0x1000}, true},
		{"reading PID 1's limits", "prlimit64", [6]uint64{1, 7, null, 0x1000}, true},
		{"PID 1's limits", "prlimit64", [6]uint64{1, 7, 0x1000}, false},
		{"own nice value", "setpriority", [6]uint64{0, 0, 10}, true},
		{"PID 1's nice value", "setpriority", [6]uint64{0, 1, 19}, false},
		{"everyone's nice value", "setpriority", [6]uint64{2, 0, 19}, false},
		{"own cores", "sched_setaffinity", [6]uint64{0, 8, 0x1000}, false},
		{"reading own cores", "sched_getaffinity", [6]uint64{0, 8, 0x1000}, true},
		{"own scheduler", "sched_setscheduler", [6]uint64{0, 3}, true},
		{"another thread's usual scheduler", "sched_setscheduler", [6]uint64{40, 0}, true},
		{"PID 1's scheduler", "sched_setscheduler", [6]uint64{1, 5}, false},
		{"own attributes", "sched_setattr", [6]uint64{0}, false},
		{"no attribute", "setxattr", [6]uint64{0, 0, 0, 0}, true},
		{"an attribute of 3 bytes", "setxattr", [6]uint64{0, 0, 0, 3}, true},
		{"of 5", "lsetxattr", [6]uint64{0, 0, 0, 5}, true},
		{"of 1022", "fsetxattr", [6]uint64{0, 0, 0, 1022}, true},
		{"of 1023", "fsetxattr", [6]uint64{0, 0, 0, 1023}, true},
		{"of 1024", "fsetxattr", [6]uint64{0, 0, 0, 1024}, true},
		{"of 1025", "fsetxattr", [6]uint64{0, 0, 0, 1025}, true},
		{"of 65536", "setxattr", [6]uint64{0, 0, 0, 65536}, true},
		{"a list of 4 entries", "setxattr", [6]uint64{0, 0, 0, 36}, true},
		{"a list of 5 entries", "setxattr", [6]uint64{0, 0, 0, 44}, true},
		{"a list of 6 entries", "setxattr", [6]uint64{0, 0, 0, 52}, false},
		{"a list of 6 entries of a link", "lsetxattr", [6]uint64{0, 0, 0, 52}, false},
		{"a list of 8191 entries", "fsetxattr", [6]uint64{0, 0, 0, 65532}, false},
		{"one with an upper bit", "setxattr", [6]uint64{0, 0, 0, high | 44}, false},
		{"MADV_DONTNEED", "madvise", [6]uint64{0, 4096, unix.MADV_DONTNEED}, true},
		{"what precedes MADV_MERGEABLE", "madvise", [6]uint64{0, 4096, 11}, true},
		{"what follows it", "madvise", [6]uint64{0, 4096, unix.MADV_UNMERGEABLE}, true},
		{"MADV_POPULATE_WRITE", "madvise", [6]uint64{0, 4096, unix.MADV_POPULATE_WRITE}, true},
		{"MADV_MERGEABLE with an upper bit", "madvise", [6]uint64{0, 4096, high | unix.MADV_MERGEABLE}, false},
		{"signal through a pidfd", "pidfd_send_signal", [6]uint64{3, 15, null}, true},
		{"signal of a forged origin through a pidfd", "pidfd_send_signal", [6]uint64{3, 11, 0x1000}, false},
		{"signal of a forged origin", "rt_sigqueueinfo", [6]uint64{1, 11, 0x1000}, false},
		{"signal of a forged origin to a thread", "rt_tgsigqueueinfo", [6]uint64{1, 1, 11, 0x1000}, false},
		{"kill", "kill", [6]uint64{1, 15}, true},
	} {
		for what, profile := range map[string][]seccompRule{"without": rules, "with": withGPU} {
			testbed.Diff(t, fmt.Sprintf("%s: %s a GPU allowed", c.what, what), c.allow, allows(profile, c.name, c.args))
		}
	}
	for _, c := range []struct { // by which programs on several GPUs find each other
		what string
		name string
		args [6]uint64
	}{
		{"netlink of routes", "socket", [6]uint64{16, 3, 0}},
		{"sendto with MSG_MORE", "sendto", [6]uint64{3, 0, 1, unix.MSG_MORE}},
		{"sendmsg with MSG_MORE", "sendmsg", [6]uint64{3, 0, unix.MSG_MORE | unix.MSG_NOSIGNAL}},
		{"sendmmsg with MSG_MORE", "sendmmsg", [6]uint64{3, 0, 1, high | unix.MSG_MORE}},
	} {
		testbed.Check(t, !allows(rules, c.name, c.args) && allows(withGPU, c.name, c.args), "%s: allowed without a GPU, or refused with one", c.what)
	}
}

// allows reports whether one of the rules allows a call.
func allows(rules []seccompRule, name string, args [6]uint64) bool {
	return slices.ContainsFunc(rules, func(r seccompRule) bool {
		return r.Action == "SCMP_ACT_ALLOW" && slices.Contains(r.Names, name) && r.holds(args)
	})
}

// Programs go on without a feature when the kernel answers as one without it. The rules that answer match no call that another rule
// allows, since the order of rules means nothing to the engine.
func TestSeccompProfileAnswersAsAKernelWithoutTheFeature(t *testing.T) {
	t.Parallel()
	rules := seccompRules(t, false)
	for _, c := range []struct {
		name  string
		args  [6]uint64
		errno syscall.Errno
	}{
		{"socket", [6]uint64{unix.AF_NETLINK, 3, 0}, unix.EOPNOTSUPP},
		{"seccomp", [6]uint64{1}, unix.ENOSYS},
		{"prctl", [6]uint64{unix.PR_SET_SECCOMP, 2}, unix.EINVAL},
		{"prctl", [6]uint64{unix.PR_SET_VMA}, unix.EINVAL},
		{"prctl", [6]uint64{unix.PR_SET_MEMORY_MERGE, 1}, unix.EINVAL},
		{"madvise", [6]uint64{0, 4096, unix.MADV_MERGEABLE}, unix.EINVAL},
		{"landlock_create_ruleset", [6]uint64{0, 0, 1}, unix.ENOSYS},
		{"landlock_add_rule", [6]uint64{3}, unix.ENOSYS},
		{"landlock_restrict_self", [6]uint64{3}, unix.ENOSYS},
		{"sched_setattr", [6]uint64{}, unix.ENOSYS},
		{"setxattrat", [6]uint64{}, unix.ENOSYS},
		{"open", [6]uint64{0, unix.O_DIRECT}, unix.EINVAL},
		{"openat", [6]uint64{3, 0, unix.O_DIRECT}, unix.EINVAL},
		{"fcntl", [6]uint64{3, unix.F_SETFL, unix.O_DIRECT}, unix.EINVAL},
		{"preadv2", [6]uint64{3, 0, 1, 0, 0, 0x80}, unix.EOPNOTSUPP},
		{"io_setup", [6]uint64{128}, unix.ENOSYS},
		{"sync", [6]uint64{}, 0},
		{"syncfs", [6]uint64{3}, 0},
		{"fsync", [6]uint64{3}, 0},
		{"fdatasync", [6]uint64{3}, 0},
		{"prlimit64", [6]uint64{0, unix.RLIMIT_CORE, 0x1000}, 0},
		{"setrlimit", [6]uint64{unix.RLIMIT_CORE, 0x1000}, 0},
		{"setsockopt", [6]uint64{3, unix.SOL_SOCKET, unix.SO_RCVBUF}, 0},
		{"setsockopt", [6]uint64{3, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE}, 0},
		{"sched_setaffinity", [6]uint64{0, 8, 0x1000}, 0},
		{"setsockopt", [6]uint64{3, unix.SOL_SOCKET, unix.SO_RCVLOWAT}, unix.ENOPROTOOPT},
		{"setsockopt", [6]uint64{3, unix.SOL_SOCKET, unix.SO_TIMESTAMPING}, unix.ENOPROTOOPT},
		{"setsockopt", [6]uint64{3, unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW}, unix.ENOPROTOOPT},
		{"setsockopt", [6]uint64{3, unix.SOL_SOCKET, unix.SO_ZEROCOPY}, unix.ENOPROTOOPT},
		{"setsockopt", [6]uint64{3, unix.IPPROTO_TCP, unix.TCP_MD5SIG}, unix.ENOPROTOOPT},
		{"setsockopt", [6]uint64{3, unix.IPPROTO_TCP, unix.TCP_ULP}, unix.ENOPROTOOPT},
		{"setsockopt", [6]uint64{3, unix.IPPROTO_UDP, unix.UDP_CORK}, unix.ENOPROTOOPT},
		{"setsockopt", [6]uint64{3, unix.IPPROTO_IP, unix.IP_RECVERR}, 0},
		{"setsockopt", [6]uint64{3, unix.IPPROTO_IPV6, unix.IPV6_RECVERR}, 0},
		{"fadvise64", [6]uint64{3, 0, 0, unix.FADV_DONTNEED}, 0},
		{"cachestat", [6]uint64{3}, unix.ENOSYS},
		{"memfd_secret", [6]uint64{}, unix.ENOSYS},
		{"splice", [6]uint64{3}, unix.EINVAL},
		{"sendfile", [6]uint64{3}, unix.EINVAL},
		{"setsockopt", [6]uint64{3, unix.SOL_SOCKET, unix.SO_TIMESTAMP}, unix.ENOPROTOOPT},
		{"setsockopt", [6]uint64{3, unix.IPPROTO_UDP, unix.UDP_GRO}, unix.ENOPROTOOPT},
		{"sendto", [6]uint64{3, 0, 1, unix.MSG_MORE}, unix.EOPNOTSUPP},
		{"sendmsg", [6]uint64{3, 0, unix.MSG_MORE | unix.MSG_NOSIGNAL}, unix.EOPNOTSUPP},
		{"sendmmsg", [6]uint64{3, 0, 1, 1<<32 | unix.MSG_MORE}, unix.EOPNOTSUPP},
	} {
		matching := 0
		for _, r := range rules {
			if !slices.Contains(r.Names, c.name) || !r.holds(c.args) {
				continue
			}
			matching++
			if r.Action != "SCMP_ACT_ERRNO" || r.Errno == nil || *r.Errno != uint(c.errno) {
				t.Errorf("%s %v: rule %+v, want the error %v", c.name, c.args, r, c.errno)
			}
		}
		testbed.Diff(t, fmt.Sprintf("%s %v: rules match", c.name, c.args), 1, matching)
	}
}

// The engine treats several conditions of a rule on one argument as alternatives.
func TestSeccompProfileHasOneConditionAnArgument(t *testing.T) {
	t.Parallel()
	for _, rule := range seccompRules(t, true) {
		seen := map[uint]bool{}
		for _, c := range rule.Args {
			testbed.Check(t, !seen[c.Index], "%v: two conditions on argument %d", rule.Names, c.Index)
			seen[c.Index] = true
		}
	}
}

// A proxy compares the profile of another process with its own.
func TestSeccompProfileIsTheSameEachTime(t *testing.T) {
	t.Parallel()
	first, err := seccompProfile(false)
	testbed.Must(t, err)
	for range 50 {
		again, err := seccompProfile(false)
		testbed.Require(t, err == nil && again == first, "the profile differs (error %v)", err)
	}
}

// Every number is in one block, but those that are refused, which are in none.
func TestAllBut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const size = 64
		refused := rapid.SliceOf(rapid.Uint64Range(0, 2*size)).Draw(t, "refused")
		in := map[uint64]int{}
		for _, b := range allBut(size, refused...) {
			for n := range uint64(size) {
				if n&^(b.size-1) == b.first { // as within compares
					in[n]++
				}
			}
		}
		for n := range uint64(size) {
			if slices.Contains(refused, n) != (in[n] == 0) || in[n] > 1 {
				t.Fatalf("%d is in %d blocks", n, in[n])
			}
		}
	})
}

// A kubelet gets the same rules as Docker: what is denied there is denied here, and the call that opens a netlink socket fails in the same way.
func TestKubeletSeccomp(t *testing.T) {
	t.Parallel()
	data, err := KubeletSeccomp()
	testbed.Must(t, err)
	var profile specs.LinuxSeccomp
	testbed.Must(t, json.Unmarshal(data, &profile))
	if profile.DefaultAction != specs.ActErrno || len(profile.Architectures) != 1 {
		t.Errorf("default action %s, architectures %v", profile.DefaultAction, profile.Architectures)
	}
	netlink := false
	for _, rule := range profile.Syscalls {
		for _, name := range rule.Names {
			if rule.Action == specs.ActAllow && (name == "keyctl" || name == "io_uring_setup" || name == "mount" || name == "bpf" || name == "userfaultfd") {
				t.Errorf("%s is allowed", name)
			}
			netlink = netlink || name == "socket" && rule.Action == specs.ActErrno && rule.ErrnoRet != nil && *rule.ErrnoRet == uint(unix.EOPNOTSUPP)
		}
	}
	testbed.Check(t, netlink, "no rule for netlink")
}
