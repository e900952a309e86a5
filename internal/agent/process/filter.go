package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// namespaces are the flags of clone that make namespaces.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// condition is one on the lower 32 bits of an argument of a system call, which is what the kernel reads of numbers.
type condition struct {
	arg  uint32
	op   op
	than []uint32
}

type op int

const (
	isOneOf  op = iota // of than
	isNot              // than[0]
	hasAnyOf           // the bits of than[0]
	isOver             // or equal to than[0]
	isSet              // any of the 64 bits: a pointer
)

// rule makes a system call return an error without effect, or success for 0, if all conditions hold.
type rule struct {
	call  uint32
	errno syscall.Errno
	when  []condition
}

// rules protect the threads of the agent from user code of the same uid where the engine's profile of system calls has no effect: gVisor
// ignores it. Signals to the agent have no effect, as those to PID 1 in Linux; gVisor delivers even SIGKILL. The others are in
// internal/engine/seccomp.go too, with their reasons.
func rules(agent []uint32) []rule {
	own := func(arg uint32) []condition { return []condition{{arg, isNot, []uint32{0}}} }
	return []rule{
		{unix.SYS_KILL, 0, []condition{{0, isOneOf, agent}}},
		{unix.SYS_TKILL, 0, []condition{{0, isOneOf, agent}}},
		{unix.SYS_TGKILL, 0, []condition{{1, isOneOf, agent}}},
		{unix.SYS_PIDFD_OPEN, unix.EPERM, []condition{{0, isOneOf, agent}}},
		{unix.SYS_PIDFD_SEND_SIGNAL, unix.EPERM, []condition{{2, isSet, nil}}},
		{unix.SYS_RT_SIGQUEUEINFO, unix.EPERM, nil},
		{unix.SYS_RT_TGSIGQUEUEINFO, unix.EPERM, nil},
		{unix.SYS_FCNTL, unix.EPERM, []condition{{1, isOneOf, []uint32{unix.F_SETSIG}}}},
		{unix.SYS_PRLIMIT64, unix.EPERM, []condition{{0, isNot, []uint32{0}}, {2, isSet, nil}}},
		{unix.SYS_SETPRIORITY, unix.EPERM, own(0)},
		{unix.SYS_SETPRIORITY, unix.EPERM, own(1)},
		{unix.SYS_SETPRIORITY, unix.EACCES, []condition{{2, isOver, []uint32{1 << 31}}}}, // a negative one
		{unix.SYS_SCHED_SETSCHEDULER, unix.EPERM, slices.Concat(own(0), own(1))},
		{unix.SYS_SCHED_SETPARAM, unix.EPERM, own(0)},
		{unix.SYS_SCHED_SETATTR, unix.EPERM, own(0)},
		{unix.SYS_UNSHARE, unix.EPERM, nil},
		{unix.SYS_SETNS, unix.EPERM, nil},
		{unix.SYS_CLONE, unix.EPERM, []condition{{0, hasAnyOf, []uint32{namespaces}}}},
		{unix.SYS_CLONE3, unix.ENOSYS, nil}, // its flags lie in memory; the C library uses clone then
		// gVisor has the host's disk flush its cache, also for a file that only the host writes.
		{unix.SYS_SYNC, 0, nil},
		{unix.SYS_SYNCFS, 0, nil},
		{unix.SYS_FSYNC, 0, nil},
		{unix.SYS_FDATASYNC, 0, nil},
		{unix.SYS_SYNC_FILE_RANGE, 0, nil},
		{unix.SYS_MSYNC, 0, []condition{{2, hasAnyOf, []uint32{unix.MS_SYNC}}}},
		{unix.SYS_IO_SETUP, unix.ENOSYS, nil}, // its requests lie in memory; databases use threads then
	}
}

// compile makes the program of rules for the kernel. A call without a rule, or whose conditions do not hold, is allowed.
func compile(arch uint32, rules []rule) []unix.SockFilter {
	const foreign = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	program := []unix.SockFilter{
		load(4), jump(unix.BPF_JEQ, arch, 1, 0), ret(foreign),
		load(0), jump(unix.BPF_JGE, 1<<30, 0, 1), ret(foreign), // x32 on amd64; no call has such a number elsewhere
	}
	for len(rules) > 0 {
		same := 1
		for same < len(rules) && rules[same].call == rules[0].call {
			same++
		}
		var block []unix.SockFilter
		for _, r := range rules[:same] {
			block = append(block, r.compile()...)
		}
		block = append(block, ret(unix.SECCOMP_RET_ALLOW))
		program = append(program, jump(unix.BPF_JEQ, rules[0].call, 0, len(block)))
		program = append(program, block...)
		rules = rules[same:]
	}
	return append(program, ret(unix.SECCOMP_RET_ALLOW))
}

// compile makes the part of a program that returns if the conditions of a rule hold, and continues after itself if not.
func (r rule) compile() []unix.SockFilter {
	part := []unix.SockFilter{ret(unix.SECCOMP_RET_ERRNO | uint32(r.errno))}
	for _, c := range slices.Backward(r.when) { // from the end: then the distance to it is known
		end := len(part)
		var test []unix.SockFilter
		low, high := 16+8*c.arg, 20+8*c.arg // amd64 and arm64 are little-endian
		switch c.op {
		case isOneOf:
			test = append(test, load(low))
			for i, value := range c.than {
				test = append(test, jump(unix.BPF_JEQ, value, len(c.than)-i, 0))
			}
			test = append(test, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(end)}) //nolint:gosec // small
		case isNot:
			test = append(test, load(low), jump(unix.BPF_JEQ, c.than[0], end, 0))
		case hasAnyOf:
			test = append(test, load(low), jump(unix.BPF_JSET, c.than[0], 0, end))
		case isOver:
			test = append(test, load(low), jump(unix.BPF_JGE, c.than[0], 0, end))
		case isSet:
			test = append(test, load(low), jump(unix.BPF_JEQ, 0, 0, 2), load(high), jump(unix.BPF_JEQ, 0, end, 0))
		}
		part = append(test, part...)
	}
	return part
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

// jump compares what was loaded, and skips some instructions if it is so, or if not.
func jump(test uint16, value uint32, yes, no int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: value, Jt: uint8(yes), Jf: uint8(no)} //nolint:gosec // maxProtected bounds them
}

// maxProtected bounds the threads that a filter protects: a jump skips at most 255 instructions.
const maxProtected = 100

// threads lists the threads of this process.
func threads() ([]uint32, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for _, entry := range entries {
		id, err := strconv.ParseUint(entry.Name(), 10, 32)
		if err != nil {
			return nil, err
		}
		ids = append(ids, uint32(id))
	}
	return ids[:min(len(ids), maxProtected)], nil
}

// Protect makes the processes that the reaper starts from now on unable to signal the agent's present threads, to change limits and
// priorities of others and to make namespaces. One thread of the agent has the filter, and starts all of them. Call it once, before the
// first process. It changes nothing where the kernel has no filters: in Linux the engine's profile refuses them, and does the same itself.
func (r *Reaper) Protect() error {
	ready, starts := make(chan error), make(chan func())
	go func() {
		runtime.LockOSThread() // for good
		err := filterThread()
		ready <- err
		if err != nil {
			return
		}
		for {
			select {
			case start := <-starts:
				start()
			case <-r.stop:
				return
			}
		}
	}()
	switch err := <-ready; {
	case err == nil:
		r.starts = starts
	case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}

// filterThread filters the system calls of the current thread and of the processes that it starts.
func filterThread() error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return unix.ENOSYS
	}
	ids, err := threads()
	if err != nil {
		return err
	}
	program := compile(arch, rules(ids))
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}                                 //nolint:gosec // some hundred
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0) //nolint:gosec // the call takes a pointer
}
