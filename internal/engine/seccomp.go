package engine

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// seccompProfile is moby's default profile, less calls that open ways between sandboxes or wide kernel surface:
// keyrings (shared by uid over containers), io_uring, userfaultfd, and socketcall, which would get round the rules on
// the families of socket. What no rule allows gives EPERM.
//
// It also keeps user code off the agent, which has the same uid: see guarded.
func seccompProfile() (string, error) {
	profile := seccomp.DefaultProfile()
	for _, rule := range profile.Syscalls {
		rule.Names = slices.DeleteFunc(rule.Names, denied)
	}
	profile.Syscalls = slices.DeleteFunc(profile.Syscalls, func(rule *seccomp.Syscall) bool { return len(rule.Names) == 0 })
	profile.Syscalls = append(profile.Syscalls, guarded()...)
	data, err := json.Marshal(profile)
	return string(data), err
}

// denied reports whether a system call is taken out of the default profile, also if a later version allows it.
func denied(name string) bool {
	switch name {
	case "keyctl", "add_key", "request_key", "userfaultfd", "socketcall",
		"rt_sigqueueinfo", "rt_tgsigqueueinfo": // they forge where a signal comes from: Go takes such a SIGSEGV for its own and dies
		return true
	case "socket", "fcntl", "fcntl64", "pidfd_send_signal", "prlimit64", "setpriority", "sched_setscheduler", "sched_setparam", "sched_setattr":
		return true // guarded allows a part of each
	}
	return strings.HasPrefix(name, "io_uring_")
}

// guarded allows a part of calls that would reach the agent or the families of sockets that are closed. A comparison is of
// 64 bits, and the kernel looks at the lower 32: a rule that says what is allowed as "more than" or "not" is passed by an
// argument with an upper bit set, so all of these name what they allow with no upper bit.
func guarded() []*seccomp.Syscall {
	rules := []*seccomp.Syscall{
		allow([]string{"prlimit64"}, zero(0)),                                             // one's own limits,
		allow([]string{"prlimit64"}, zero(2)),                                             // or only reading
		allow([]string{"setpriority"}, zero(0), zero(1)),                                  // PRIO_PROCESS, oneself
		allow([]string{"pidfd_send_signal"}, zero(2)),                                     // without a forged origin
		allow([]string{"sched_setscheduler", "sched_setparam", "sched_setattr"}, zero(0)), // oneself,
		allow([]string{"sched_setscheduler"}, zero(1)),                                    // or the usual scheduler: ZeroMQ sets it for each of its threads
	}
	// The families of socket but AF_ALG (38) and AF_VSOCK (40).
	for _, r := range [][2]uint64{{0, 32}, {32, 4}, {36, 2}, {39, 1}, {41, 1}, {42, 2}, {44, 4}, {48, 16}} {
		rules = append(rules, allow([]string{"socket"}, within(0, r[0], r[1])))
	}
	// The commands of fcntl but F_SETSIG (10), which makes any signal of any process of the same uid.
	for _, r := range [][2]uint64{{0, 8}, {8, 2}, {11, 1}, {12, 4}, {16, 16}, {32, 32}, {1024, 64}} {
		rules = append(rules, allow([]string{"fcntl", "fcntl64"}, within(1, r[0], r[1])))
	}
	return rules
}

// allow is a rule that holds when all of its conditions do.
func allow(names []string, when ...specs.LinuxSeccompArg) *seccomp.Syscall {
	return &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: names, Action: specs.ActAllow, Args: when}}
}

// zero holds when an argument is 0.
func zero(index uint) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Op: specs.OpEqualTo}
}

// within holds when an argument is one of size values from first on; size is a power of two that divides first.
func within(index uint, first, size uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: ^(size - 1), ValueTwo: first, Op: specs.OpMaskedEqual}
}
