package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// seccompRule is what the engine reads of a profile.
type seccompRule struct {
	Names  []string
	Action string
	Args   []specs.LinuxSeccompArg
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

func seccompRules(t *testing.T, netlink bool) []seccompRule {
	t.Helper()
	text, err := seccompProfile(netlink)
	if err != nil {
		t.Fatal(err)
	}
	var profile struct {
		DefaultAction string
		ArchMap       []struct{ SubArchitectures []string }
		Syscalls      []seccompRule
	}
	if err := json.Unmarshal([]byte(text), &profile); err != nil {
		t.Fatal(err)
	}
	if profile.DefaultAction != "SCMP_ACT_ERRNO" {
		t.Errorf("default action %q", profile.DefaultAction)
	}
	for _, arch := range profile.ArchMap {
		if len(arch.SubArchitectures) > 0 {
			t.Errorf("programs of %v may make system calls, too", arch.SubArchitectures)
		}
	}
	return profile.Syscalls
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
		{"IPv6 socket", "socket", [6]uint64{10}, true},
		{"IPv4 socket", "socket", [6]uint64{2}, true},
		{"AF_AX25", "socket", [6]uint64{3}, false},
		{"netlink of routes", "socket", [6]uint64{16, 3, 0}, true},
		{"netlink of another kind", "socket", [6]uint64{16, 3, 15}, false},
		{"netlink with an upper bit in its kind", "socket", [6]uint64{16, 3, high}, false},
		{"AF_TIPC", "socket", [6]uint64{30}, false},
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
		{"own scheduler", "sched_setscheduler", [6]uint64{0, 3}, true},
		{"another thread's usual scheduler", "sched_setscheduler", [6]uint64{40, 0}, true},
		{"PID 1's scheduler", "sched_setscheduler", [6]uint64{1, 5}, false},
		{"PID 1's attributes", "sched_setattr", [6]uint64{1}, false},
		{"signal through a pidfd", "pidfd_send_signal", [6]uint64{3, 15, null}, true},
		{"signal of a forged origin through a pidfd", "pidfd_send_signal", [6]uint64{3, 11, 0x1000}, false},
		{"signal of a forged origin", "rt_sigqueueinfo", [6]uint64{1, 11, 0x1000}, false},
		{"signal of a forged origin to a thread", "rt_tgsigqueueinfo", [6]uint64{1, 1, 11, 0x1000}, false},
		{"kill", "kill", [6]uint64{1, 15}, true},
	} {
		allowed := func(r seccompRule) bool {
			return r.Action == "SCMP_ACT_ALLOW" && slices.Contains(r.Names, c.name) && r.holds(c.args)
		}
		if got := slices.ContainsFunc(rules, allowed); got != c.allow {
			t.Errorf("%s: allowed is %v", c.what, got)
		}
		if got := slices.ContainsFunc(withGPU, allowed); got != (c.allow || strings.HasPrefix(c.what, "netlink of another") || c.what == "netlink with an upper bit in its kind") {
			t.Errorf("%s: with a GPU allowed is %v", c.what, got)
		}
	}
}

// The engine treats several conditions of a rule on one argument as alternatives.
func TestSeccompProfileHasOneConditionAnArgument(t *testing.T) {
	t.Parallel()
	for _, rule := range seccompRules(t, true) {
		seen := map[uint]bool{}
		for _, c := range rule.Args {
			if seen[c.Index] {
				t.Errorf("%v: two conditions on argument %d", rule.Names, c.Index)
			}
			seen[c.Index] = true
		}
	}
}
