package engine

import (
	"encoding/json"
	"fmt"
	"maps"
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
// The profile also protects the agent from user code, which has the same uid: see restricted. Sandboxes with GPUs may use two things more,
// by which programs on several GPUs find each other: netlink of routes, without which NCCL does not start, and MSG_MORE, which PyTorch's store
// sends with.
func seccompProfile(gpus bool) (string, error) {
	profile := seccomp.DefaultProfile()
	for i := range profile.ArchMap {
		profile.ArchMap[i].SubArches = nil
	}
	for _, rule := range profile.Syscalls {
		rule.Names = slices.DeleteFunc(rule.Names, denied)
	}
	profile.Syscalls = slices.DeleteFunc(profile.Syscalls, func(rule *seccomp.Syscall) bool { return len(rule.Names) == 0 })
	profile.Syscalls = slices.Concat(profile.Syscalls, restricted(), sockets(), socketOptions(), controls(), xattrs(), uncached(), absent())
	if gpus {
		profile.Syscalls = append(profile.Syscalls, allow([]string{"socket"}, is(0, unix.AF_NETLINK), is(2, unix.NETLINK_ROUTE)),
			allow([]string{"sendto", "sendmsg", "sendmmsg"}))
	} else { // ZeroMQ continues after this error; it aborts at EAFNOSUPPORT
		profile.Syscalls = append(append(profile.Syscalls, fail(unix.EOPNOTSUPP, []string{"socket"}, is(0, unix.AF_NETLINK))), sends()...)
	}
	data, err := json.Marshal(profile)
	return string(data), err
}

// KubeletSeccomp is the profile of sandboxes without GPUs as a kubelet reads it: in the form of the OCI runtime specification, for this processor.
func KubeletSeccomp() ([]byte, error) {
	text, err := seccompProfile(false)
	if err != nil {
		return nil, err
	}
	profile, err := seccomp.LoadProfile(text, &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	if err != nil {
		return nil, fmt.Errorf("convert seccomp profile: %w", err)
	}
	return json.MarshalIndent(profile, "", " ")
}

// denied reports whether a system call is removed from the default profile, also if a later version allows it.
func denied(name string) bool {
	switch name {
	case "keyctl", "add_key", "request_key", "userfaultfd", "socketcall",
		"rt_sigqueueinfo", "rt_tgsigqueueinfo": // they forge the origin of a signal: Go treats such a SIGSEGV as its own and crashes
		return true
	case "socket", "socketpair", "setsockopt", "fcntl", "fcntl64", "pidfd_send_signal", "prlimit64", "setpriority", "sched_setscheduler", "sched_setparam",
		"ioprio_set", "prctl", "setrlimit", "ioctl", "sendto", "sendmsg", "sendmmsg", "getsockopt",
		"setxattr", "lsetxattr", "fsetxattr", "madvise", "open", "openat", "preadv2":
		return true // restricted, sockets, sends, uncached, socketOptions, controls and xattrs allow a part of each
	case "setxattrat", "sched_setaffinity", "sched_setattr", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
		"seccomp", "io_setup", "sync", "syncfs", "fsync", "fdatasync", "fadvise64", "cachestat", "splice", "sendfile", "sendfile64", "memfd_secret":
		return true // absent answers them
	}
	return strings.HasPrefix(name, "io_uring_")
}

// restricted allows a part of each call that could reach the agent or the host. seccomp compares 64 bits, but the kernel
// reads the lower 32: an argument with an upper bit set would pass a rule that allows "more than" or "not" a value. So each rule names
// what it allows, without upper bits.
func restricted() []*seccomp.Syscall {
	rules := []*seccomp.Syscall{
		allow([]string{"prlimit64"}, is(2, 0)),                            // reading limits,
		allow([]string{"setpriority"}, is(0, 0), is(1, 0)),                // PRIO_PROCESS, own
		allow([]string{"ioprio_set"}, is(0, 1), is(1, 0)),                 // IOPRIO_WHO_PROCESS, own
		allow([]string{"pidfd_send_signal"}, is(2, 0)),                    // without a forged origin
		allow([]string{"sched_setscheduler", "sched_setparam"}, is(0, 0)), // own,
		allow([]string{"sched_setscheduler"}, is(1, 0)),                   // or the default scheduler: ZeroMQ sets it for each of its threads
	}
	// or setting its own, except that of core files, see absent.
	for _, r := range allBut(16, unix.RLIMIT_CORE) {
		rules = append(rules, allow([]string{"prlimit64"}, is(0, 0), within(1, r)), allow([]string{"setrlimit"}, within(0, r)))
	}
	// The commands of fcntl except F_SETSIG, which can send any signal to any process of the same uid, and F_SETFL, see uncached.
	for _, r := range append(allBut(64, unix.F_SETSIG, unix.F_SETFL), block{1024, 64}) {
		rules = append(rules, allow([]string{"fcntl", "fcntl64"}, within(1, r)))
	}
	// The options of prctl except PR_SET_SECCOMP and PR_SET_MEMORY_MERGE, see absent, and PR_SCHED_CORE, which slows the scheduler of the whole host.
	// The last one permits a debugger.
	for _, r := range append(allBut(128, unix.PR_SET_SECCOMP, unix.PR_SCHED_CORE, unix.PR_SET_MEMORY_MERGE), block{unix.PR_SET_PTRACER, 1}) {
		rules = append(rules, allow([]string{"prctl"}, within(0, r)))
	}
	return rules
}

// sockets allows what code without a network needs: AF_UNIX, and TCP and UDP of AF_INET and AF_INET6. Other protocols load modules into the
// host's kernel, or have memory that is charged to no cgroup, as answers to pings are. The kernel looks for a module for each type that does not go
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
		{unix.AF_INET6, unix.SOCK_STREAM, 0},
		{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP},
		{unix.AF_INET6, unix.SOCK_DGRAM, 0},
		{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP},
	} {
		kind := specs.LinuxSeccompArg{Index: 1, Value: ^uint64(flags), ValueTwo: s.kind, Op: specs.OpMaskedEqual}
		rules = append(rules, allow([]string{"socket"}, is(0, s.family), kind, is(2, s.protocol)))
	}
	return rules
}

// controls allows the commands of ioctl, by their type and number: their lower 16 bits. Without those for which the kernel starts modprobe before it asks who
// calls: a terminal's line discipline (TIOCSETD), bridges and VLANs; those that ask when something was received, see socketOptions; and those of file systems,
// of which a sandbox has the engine's by /etc/hosts: FS_IOC_GETFSMAP reads the map of the whole disk without giving way to others, and BTRFS_IOC_SYNC writes what
// all programs have not written yet.
func controls() []*seccomp.Syscall {
	const bits = 1 << 16
	refused := []uint64{
		unix.TIOCSETD,
		unix.SIOCGSTAMP, unix.SIOCGSTAMPNS, // and those with 64 bits
		unix.SIOCGIFBR, unix.SIOCSIFBR,
		unix.SIOCADDDLCI, unix.SIOCDELDLCI, unix.SIOCGIFVLAN, unix.SIOCSIFVLAN,
		unix.SIOCBRADDBR, unix.SIOCBRDELBR, unix.SIOCBRADDIF, unix.SIOCBRDELIF,
	}
	copies := []uint64{unix.FICLONE % bits, unix.FICLONERANGE % bits, unix.FIDEDUPERANGE % bits} // which a file without them answers in another way
	for number := range uint64(256) {
		refused = append(refused, 'X'<<8|number)
		if btrfs := 0x94<<8 | number; !slices.Contains(copies, btrfs) {
			refused = append(refused, btrfs)
		}
	}
	var rules []*seccomp.Syscall
	for _, b := range allBut(bits, refused...) {
		command := specs.LinuxSeccompArg{Index: 1, Value: (bits - 1) &^ (b.size - 1), ValueTwo: b.first, Op: specs.OpMaskedEqual}
		rules = append(rules, allow([]string{"ioctl"}, command))
	}
	return rules
}

// aclEntries is how many entries an access control list of a file may have: those of its owner, group and others, of one more user, and the mask.
const aclEntries = 5

// xattrs allows extended attributes, except long access control lists. The kernel charges those to no cgroup, and copies the default one of a
// directory for each file in it: 15,000 directories took 250 MiB in half a second. A list has 4 bytes and 8 for each entry. A value of another length
// is none; the agent makes those of metadata longer by a byte where they would be one.
func xattrs() []*seccomp.Syscall {
	calls := []string{"setxattr", "lsetxattr", "fsetxattr"}
	size := func(mask, value uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: 3, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
	}
	rules := []*seccomp.Syscall{allow(calls, size(4, 0)), allow(calls, size(5, 5)), allow(calls, size(7, 6))} // all but a remainder of 4
	for n := range uint64(aclEntries + 1) {
		rules = append(rules, allow(calls, is(3, 4+8*n)))
	}
	return rules
}

// sends allows to send, except with MSG_MORE. The kernel keeps a datagram that is not complete, and charges its up to 64 KiB to no cgroup.
// It is for datagrams only that this matters, but no rule can look at what a descriptor is.
func sends() (rules []*seccomp.Syscall) {
	for _, call := range []struct {
		name  string
		flags uint // the index of this argument
	}{{"sendto", 3}, {"sendmsg", 2}, {"sendmmsg", 3}} {
		rules = append(rules, without(unix.EOPNOTSUPP, []string{call.name}, call.flags, unix.MSG_MORE)...)
	}
	return rules
}

// rwfDontCache is RWF_DONTCACHE of linux/fs.h, since Linux 6.14.
const rwfDontCache = 0x80

// uncached allows to open and to read files, except past the kernel's cache. Each such read of a file of the image is one of the host's disk, which no cgroup
// limits here: with a tenth of a core each, eight sandboxes read 1.3 GB a second, and made uploads of others 36 times slower. File systems without such reads
// answer in the same way. openat2 has its flags in memory, where no rule can look, and stays: some releases of runc, and GNU tar, do not go on without it.
func uncached() []*seccomp.Syscall {
	var rules []*seccomp.Syscall
	answer := func(arch string, all []*seccomp.Syscall) {
		for _, rule := range all {
			rule.Includes = &seccomp.Filter{Arches: []string{arch}}
		}
		rules = append(rules, all...)
	}
	for _, direct := range []struct {
		arch string
		bit  uint64
	}{{"amd64", 0x4000}, {"arm64", 0x10000}} { // O_DIRECT of the engine's processor, which need not be this one
		answer(direct.arch, without(unix.EINVAL, []string{"open"}, 1, direct.bit))
		answer(direct.arch, without(unix.EINVAL, []string{"openat"}, 2, direct.bit))
		answer(direct.arch, without(unix.EINVAL, []string{"fcntl", "fcntl64"}, 2, direct.bit, is(1, unix.F_SETFL)))
	}
	return append(rules, without(unix.EOPNOTSUPP, []string{"preadv2"}, 5, rwfDontCache)...)
}

// Options that have no name in package unix: TCP_AO_ADD_KEY of linux/tcp.h, the first of five, and IPV6_FLOWLABEL_MGR and IPV6_MINHOPCOUNT of
// linux/in6.h.
const (
	tcpAOAddKey     = 38
	ipv6FlowLabel   = 32
	ipv6MinHopCount = 73
)

// socketOptions allows the options of the levels that the allowed sockets have, except those whose memory is charged to no cgroup, 128 KiB or more for each socket:
// filters, multicast groups, keys of TCP, incomplete datagrams, queues of errors, of timestamps and of what was sent without a copy; those
// that let an unaccepted connection keep more data than the system's default; those for which a module may be loaded; a pace, which the kernel keeps with timers that are charged
// to no cgroup; those that change code of the kernel when they are set first, which
// interrupts all cores of the host (timestamps, UDP_GRO), or for good (IP_MINTTL, TCP_TX_DELAY); and labels of flows, of which the host has 4096. Other levels are not allowed: the kernel takes that of UDP-Lite for UDP, too.
func socketOptions() []*seccomp.Syscall {
	var rules []*seccomp.Syscall
	refused := map[uint64][]uint64{
		unix.IPPROTO_IP: {
			unix.IP_RECVERR, unix.IP_MINTTL, unix.IP_ADD_MEMBERSHIP, unix.IP_ADD_SOURCE_MEMBERSHIP, unix.IP_MSFILTER, unix.MCAST_JOIN_GROUP, unix.MCAST_JOIN_SOURCE_GROUP, unix.MCAST_MSFILTER,
		},
		unix.SOL_SOCKET: {
			unix.SO_RCVBUF, unix.SO_RCVLOWAT, unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF,
			unix.SO_TIMESTAMPING, unix.SO_TIMESTAMPING_NEW, unix.SO_ZEROCOPY,
			unix.SO_TIMESTAMP, unix.SO_TIMESTAMP_NEW, unix.SO_TIMESTAMPNS, unix.SO_TIMESTAMPNS_NEW, unix.SO_MAX_PACING_RATE,
		},
		unix.IPPROTO_TCP: {
			unix.TCP_MD5SIG, unix.TCP_MD5SIG_EXT, unix.TCP_ULP, unix.TCP_TX_DELAY, tcpAOAddKey, tcpAOAddKey + 1, tcpAOAddKey + 2, tcpAOAddKey + 3, tcpAOAddKey + 4,
		},
		unix.IPPROTO_UDP: {unix.UDP_CORK, unix.UDP_ENCAP, unix.UDP_GRO},
		unix.SOL_NETLINK: nil,
		unix.IPPROTO_IPV6: {
			unix.IPV6_RECVERR, unix.IPV6_2292PKTOPTIONS, unix.IPV6_JOIN_GROUP, unix.IPV6_JOIN_ANYCAST, ipv6FlowLabel, ipv6MinHopCount, unix.MCAST_JOIN_GROUP, unix.MCAST_JOIN_SOURCE_GROUP, unix.MCAST_MSFILTER,
		},
	}
	for _, level := range slices.Sorted(maps.Keys(refused)) { // in an order: a proxy compares the profile
		for _, r := range allBut(128, refused[level]...) {
			rules = append(rules, allow([]string{"setsockopt"}, is(1, level), within(2, r)))
		}
	}
	answer := func(errno syscall.Errno, level, option uint64) {
		rules = append(rules, fail(errno, []string{"setsockopt"}, is(1, level), is(2, option)))
	}
	answer(0, unix.SOL_SOCKET, unix.SO_RCVBUF) // wishes, which are ignored: resolvers ask for errors
	answer(0, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
	answer(0, unix.IPPROTO_IP, unix.IP_RECVERR)
	answer(0, unix.IPPROTO_IPV6, unix.IPV6_RECVERR)
	for _, option := range []uint64{
		unix.SO_RCVLOWAT, unix.SO_TIMESTAMPING, unix.SO_TIMESTAMPING_NEW, unix.SO_ZEROCOPY,
		unix.SO_TIMESTAMP, unix.SO_TIMESTAMP_NEW, unix.SO_TIMESTAMPNS, unix.SO_TIMESTAMPNS_NEW,
	} {
		answer(unix.ENOPROTOOPT, unix.SOL_SOCKET, option)
	}
	answer(unix.ENOPROTOOPT, unix.IPPROTO_TCP, unix.TCP_MD5SIG)
	answer(unix.ENOPROTOOPT, unix.IPPROTO_TCP, unix.TCP_ULP)
	answer(unix.ENOPROTOOPT, unix.IPPROTO_UDP, unix.UDP_CORK)
	answer(unix.ENOPROTOOPT, unix.IPPROTO_UDP, unix.UDP_GRO)
	// What is read: all but pages of a connection, mapped into the program that has read them (TCP_ZEROCOPY_RECEIVE). They are counted no more.
	for _, r := range allBut(512, unix.IPPROTO_TCP) {
		rules = append(rules, allow([]string{"getsockopt"}, within(1, r)))
	}
	for _, r := range allBut(128, unix.TCP_ZEROCOPY_RECEIVE) {
		rules = append(rules, allow([]string{"getsockopt"}, is(1, unix.IPPROTO_TCP), within(2, r)))
	}
	return rules
}

// absent answers calls as a kernel without the feature does, so that programs continue without it.
func absent() []*seccomp.Syscall {
	var rules []*seccomp.Syscall
	for _, r := range allBut(8, unix.FADV_DONTNEED) {
		rules = append(rules, allow([]string{"fadvise64"}, within(3, r)))
	}
	for _, r := range allBut(128, unix.MADV_MERGEABLE) {
		rules = append(rules, allow([]string{"madvise"}, within(2, r)))
	}
	return append(rules,
		// Sandboxes of an image share its pages in memory. Who can drop one, or see which are there, sees what others read.
		fail(0, []string{"fadvise64"}, is(3, unix.FADV_DONTNEED)),
		fail(unix.ENOSYS, []string{"cachestat"}),
		// What these read of a device such as /dev/zero, or of a socket, lies in pages that no cgroup is charged for. Programs read and write instead.
		fail(unix.EINVAL, []string{"splice", "sendfile", "sendfile64"}),
		// It splits the kernel's large pages of all memory, for good: afterwards the whole host is slower.
		fail(unix.ENOSYS, []string{"memfd_secret"}),
		// A filter of system calls is compiled into memory that has one limit for the host (bpf_jit_limit). Beyond it no container starts.
		fail(unix.ENOSYS, []string{"seccomp"}),
		fail(unix.EINVAL, []string{"prctl"}, is(0, unix.PR_SET_SECCOMP)),
		// Who has the host merge equal pages gives it work, and can measure which pages others have.
		fail(unix.EINVAL, []string{"madvise"}, is(2, unix.MADV_MERGEABLE)),
		fail(unix.EINVAL, []string{"prctl"}, is(0, unix.PR_SET_MEMORY_MERGE)),
		// Since Linux 6.15 each access that it refuses is a line in the host's audit log, where there is one.
		fail(unix.ENOSYS, []string{"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}),
		// A thread that moves to another core is moved by a thread of the kernel that runs before all others and is charged to no cgroup. The cores are a wish.
		fail(0, []string{"sched_setaffinity"}),
		// Its limits of use switch on code of the host's scheduler for good. What it sets otherwise, sched_setscheduler does.
		fail(unix.ENOSYS, []string{"sched_setattr"}),
		// It has the length of the value in memory, where no rule can look, see xattrs.
		fail(unix.ENOSYS, []string{"setxattrat"}),
		// The names of areas of memory are charged to no cgroup. A process has 65530 areas.
		fail(unix.EINVAL, []string{"prctl"}, is(0, unix.PR_SET_VMA)),
		// The host's requests of asynchronous reads and writes are limited together (fs.aio-max-nr).
		fail(unix.ENOSYS, []string{"io_setup"}),
		// The first two write what all programs of the host have not written yet, the others flush the cache of its disk, also for a file that only the host
		// writes, and each one waits for those before it. A sandbox has no disk, so they succeed without effect.
		fail(0, []string{"sync", "syncfs", "fsync", "fdatasync"}),
		// The limit on core files stays as the engine set it, at which the kernel starts no program of the host for a crash.
		fail(0, []string{"prlimit64"}, is(0, 0), is(1, unix.RLIMIT_CORE), over(2, 0)),
		fail(0, []string{"setrlimit"}, is(0, unix.RLIMIT_CORE)),
	)
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

// without allows calls in which an argument lacks a bit, and has those that have it return an error; both where these conditions hold.
func without(errno syscall.Errno, names []string, index uint, bit uint64, when ...specs.LinuxSeccompArg) []*seccomp.Syscall {
	has := func(value uint64) []specs.LinuxSeccompArg {
		return append(slices.Clone(when), specs.LinuxSeccompArg{Index: index, Value: bit, ValueTwo: value, Op: specs.OpMaskedEqual})
	}
	return []*seccomp.Syscall{allow(names, has(0)...), fail(errno, names, has(bit)...)}
}

// over is the condition that an argument, of which the kernel reads all 64 bits, is larger than a value. (libseccomp does not match
// "not equal" where another rule asks for "equal".)
func over(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpGreaterThan}
}

// within is the condition that an argument is in a block.
func within(index uint, b block) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: ^(b.size - 1), ValueTwo: b.first, Op: specs.OpMaskedEqual}
}

// block are size numbers from first; size is a power of two that divides first.
type block struct{ first, size uint64 }

// allBut lists the numbers below size, a power of two, that are not refused, in as few blocks as there can be.
func allBut(size uint64, refused ...uint64) []block { return block{0, size}.without(refused) }

func (b block) without(refused []uint64) []block {
	switch {
	case !slices.ContainsFunc(refused, func(n uint64) bool { return n-b.first < b.size }): // n < first wraps around
		return []block{b}
	case b.size == 1:
		return nil
	}
	half := b.size / 2
	return append(block{b.first, half}.without(refused), block{b.first + half, half}.without(refused)...)
}
