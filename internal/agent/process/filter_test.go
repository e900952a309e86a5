package process_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// tryCalls makes the system calls of its arguments and prints the error of each. Negative results of the C library become errors.
const tryCalls = `
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
errors, zeros = [], ctypes.create_string_buffer(128)
for call in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    result = libc.syscall(*[ctypes.c_long({"self": os.getpid(), "pointer": ctypes.addressof(zeros)}.get(n, n)) for n in call])
    errors.append(ctypes.get_errno() if result < 0 else 0)
print(json.dumps(errors))
`

// What user code may not do to the agent, and its harmless twins. The test's process stands for the agent: a signal that got through
// would end it.
func TestProtectedFromItsProcesses(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	testbed.Must(t, err)
	reaper := process.NewReaper(false)
	t.Cleanup(reaper.Close)
	testbed.Must(t, reaper.Protect())
	agent := os.Getpid()
	threads, err := os.ReadDir("/proc/self/task")
	testbed.Must(t, err)
	thread, err := strconv.Atoi(threads[0].Name()) // the others may have begun since
	testbed.Must(t, err)
	const none, kill, upper = syscall.Errno(0), int(unix.SIGKILL), 1 << 32
	calls := []struct {
		call []any
		want syscall.Errno
	}{
		{[]any{unix.SYS_KILL, agent, kill}, none}, // without effect
		{[]any{unix.SYS_KILL, agent + upper, kill}, none},
		{[]any{unix.SYS_KILL, thread, kill}, none},
		{[]any{unix.SYS_TKILL, thread, kill}, none},
		{[]any{unix.SYS_TGKILL, agent, thread, kill}, none},
		{[]any{unix.SYS_TGKILL, agent + upper, thread + upper, kill}, none},
		{[]any{unix.SYS_KILL, "self", 0}, none},
		{[]any{unix.SYS_KILL, 1 << 22, kill}, unix.ESRCH}, // others as ever: no such process
		{[]any{unix.SYS_TKILL, 1 << 22, kill}, unix.ESRCH},
		{[]any{unix.SYS_PIDFD_OPEN, agent, 0}, unix.EPERM},
		{[]any{unix.SYS_PIDFD_OPEN, "self", 0}, none},
		{[]any{unix.SYS_PIDFD_SEND_SIGNAL, -1, 0, "pointer", 0}, unix.EPERM},
		{[]any{unix.SYS_PIDFD_SEND_SIGNAL, -1, 0, 0, 0}, unix.EBADF},
		{[]any{unix.SYS_RT_SIGQUEUEINFO, agent, kill, "pointer"}, unix.EPERM},
		{[]any{unix.SYS_RT_TGSIGQUEUEINFO, agent, thread, kill, "pointer"}, unix.EPERM},
		{[]any{unix.SYS_FCNTL, 0, unix.F_SETSIG, kill}, unix.EPERM},
		{[]any{unix.SYS_FCNTL, 0, unix.F_GETFD}, none},
		{[]any{unix.SYS_PRLIMIT64, agent, unix.RLIMIT_NOFILE, "pointer", 0}, unix.EPERM},
		{[]any{unix.SYS_PRLIMIT64, agent, unix.RLIMIT_NOFILE, 0, 0}, none},
		{[]any{unix.SYS_PRLIMIT64, 0, 14, "pointer", 0}, none}, // RLIMIT_RTPRIO
		{[]any{unix.SYS_SETPRIORITY, 0, agent, 5}, unix.EPERM},
		{[]any{unix.SYS_SETPRIORITY, 2, 0, 5}, unix.EPERM},
		{[]any{unix.SYS_SETPRIORITY, 0, 0, -5}, unix.EACCES},
		{[]any{unix.SYS_SETPRIORITY, 0, 0, 5}, none},
		{[]any{unix.SYS_SCHED_SETPARAM, agent, "pointer"}, unix.EPERM},
		{[]any{unix.SYS_SCHED_SETPARAM, 0, "pointer"}, none},
		{[]any{unix.SYS_SCHED_SETSCHEDULER, agent, unix.SCHED_BATCH, "pointer"}, unix.EPERM},
		{[]any{unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_BATCH, "pointer"}, none},
		{[]any{unix.SYS_SCHED_SETATTR, agent, "pointer", 0}, unix.EPERM},
		{[]any{unix.SYS_UNSHARE, unix.CLONE_NEWUSER}, unix.EPERM},
		{[]any{unix.SYS_SETNS, 0, 0}, unix.EPERM},
		{[]any{unix.SYS_CLONE, unix.CLONE_NEWUSER | int(unix.SIGCHLD), 0, 0, 0, 0}, unix.EPERM},
		{[]any{unix.SYS_CLONE, unix.CLONE_NEWPID | upper, 0, 0, 0, 0}, unix.EPERM},
		{[]any{unix.SYS_CLONE3, "pointer", 128}, unix.ENOSYS},
		{[]any{unix.SYS_SYNC}, none},
		{[]any{unix.SYS_SYNCFS, -1}, none}, // without effect: there is no such file
		{[]any{unix.SYS_FSYNC, -1}, none},
		{[]any{unix.SYS_FDATASYNC, -1}, none},
		{[]any{unix.SYS_SYNC_FILE_RANGE, -1, 0, 0, 0}, none},
		{[]any{unix.SYS_MSYNC, 1, 0, unix.MS_SYNC}, none}, // no address of a page
		{[]any{unix.SYS_MSYNC, 1, 0, unix.MS_ASYNC}, unix.EINVAL},
		{[]any{unix.SYS_IO_SETUP, 1, "pointer"}, unix.ENOSYS},
	}
	var numbers [][]any
	for _, c := range calls {
		numbers = append(numbers, c.call)
	}
	raw, err := json.Marshal(numbers)
	testbed.Must(t, err)
	var errnos []syscall.Errno
	text := output(t, reaper, python, "-c", tryCalls, string(raw))
	err = json.Unmarshal([]byte(text), &errnos)
	testbed.Require(t, err == nil && len(errnos) == len(calls), "%q: %v", text, err)
	for i, c := range calls {
		testbed.Diff(t, fmt.Sprintf("%v", c.call), c.want, errnos[i])
	}
	text = output(t, reaper, python, "-c", "import threading, subprocess; t = threading.Thread(target=print, args=(1,)); t.start(); t.join(); print(subprocess.check_output(['echo', '2'], text=True))")
	testbed.Check(t, strings.TrimSpace(text) == "1\n2", "threads and processes: %q", text)
}

// output runs a program with the reaper and returns its standard output.
func output(t *testing.T, reaper *process.Reaper, argv ...string) string {
	t.Helper()
	path := fmt.Sprintf("%s/out-%d", t.TempDir(), len(argv))
	f, err := os.Create(path)
	testbed.Must(t, err)
	defer func() { _ = f.Close() }()
	p, err := reaper.Start(argv, os.Environ(), "/", []uintptr{0, f.Fd(), f.Fd()})
	testbed.Must(t, err)
	<-p.Done()
	text, err := os.ReadFile(path)
	testbed.Must(t, err)
	return string(text)
}

func TestSocketsAreLimited(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sockstat")
	killed := 0
	limit := process.NewSocketLimit(func() { killed++ }, file)
	for _, c := range []struct{ used, kills int }{{0, 0}, {process.MaxSockets - 1, 0}, {process.MaxSockets, 0}, {process.MaxSockets + 1, 1}, {99999, 2}, {3, 2}} {
		text := fmt.Sprintf("sockets: used %d\nTCP: inuse 99999 orphan 77777 tw 88888 alloc 99999 mem 99999\nUDP: inuse 99999 mem 9\n", c.used)
		testbed.Must(t, os.WriteFile(file, []byte(text), 0o600))
		if limit.Check(); killed != c.kills || limit.Kills() != int64(c.kills) {
			t.Errorf("%d sockets: killed %d times, reported %d, want %d", c.used, killed, limit.Kills(), c.kills)
		}
	}
	testbed.Must(t, os.Remove(file))
	if limit.Check(); killed != 2 {
		t.Error("a kernel without the count has too many sockets")
	}
	var none *process.HostLimit
	testbed.Check(t, none.Kills() == 0, "no limit has ended something")
}

// Where the kernel ends the whole sandbox at its memory limit, the agent ends its programs before.
func TestMemoryIsLimited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, heap := filepath.Join(dir, "meminfo"), filepath.Join(dir, "heap")
	write := func(total, free int) {
		t.Helper()
		text := fmt.Sprintf("MemTotal:  %8d kB\nMemFree:  %8d kB\nMemAvailable:  %8d kB\nCached:  7 kB\n", total, free, free)
		testbed.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	for _, c := range []struct{ mib, tasks, kept int }{
		{64, 256, 16}, {512, 256, 96}, {512, 16, 51}, {2048, 256, 96}, {65536, 4096, 816},
	} {
		write(c.mib<<10, c.mib<<10)
		killed := 0
		limit := process.NewMemoryLimit(func() { killed++ }, file, heap, c.tasks)
		if pause := limit.Check(); killed != 0 || pause < 10*time.Millisecond || pause > time.Second {
			t.Errorf("%+v: an empty sandbox: killed %d times, again in %s", c, killed, pause)
		}
		write(c.mib<<10, c.kept<<10)
		pause := limit.Check()
		testbed.Check(t, killed == 0 && pause == 10*time.Millisecond, "%+v: at the limit: killed %d times, again in %s", c, killed, pause)
		write(c.mib<<10, c.kept<<10-4)
		if pause := limit.Check(); killed != 1 || limit.Kills() != 1 || pause != 10*time.Millisecond {
			t.Errorf("%+v: beyond the limit: killed %d times, again in %s", c, killed, pause)
		}
	}
	write(512<<10, 500<<10)
	killed := 0
	limit := process.NewMemoryLimit(func() { killed++ }, file, heap, 256)
	for _, c := range []struct{ heapMiB, kills int }{{100, 0}, {430, 1}, {430, 1}, {500, 1}, {100, 1}, {520, 1}, {521, 2}, {522, 2}} { // after a kill only new objects count
		testbed.Must(t, os.WriteFile(heap, fmt.Appendf(nil, "Alloc:  1 kB\nHeapAlloc:  %d kB\nHeapSys:  999999999 kB\n", c.heapMiB<<10), 0o600))
		if limit.Check(); killed != c.kills {
			t.Errorf("%d MiB of objects: killed %d times, want %d", c.heapMiB, killed, c.kills)
		}
	}
}

func TestTerminalsAreLimited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	killed := 0
	limit := process.NewTerminalLimit(func() { killed++ }, dir)
	add := func(name string) {
		t.Helper()
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	add("ptmx")
	for n := 1; n <= process.MaxTerminals+1; n++ {
		add(fmt.Sprint(n))
		if limit.Check(); killed != max(0, n-process.MaxTerminals) {
			t.Fatalf("%d terminals: killed %d times", n, killed)
		}
	}
	gone := process.NewTerminalLimit(func() { t.Error("a sandbox without terminals is ended") }, filepath.Join(dir, "none"))
	gone.Check()
}
