// Command probe replaces the agent in tests: it reports what a sandbox looks like from the inside.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Facts are the facts that the test reads.
type Facts struct {
	Status     map[string]string // /proc/self/status
	Init       map[string]string // /proc/1/status
	Calls      map[string]string // error of system calls, "" for none
	Writable   map[string]string // error of creating a file in a directory
	Execs      map[string]string // error of running a copy of this program from a directory
	Bytes      map[string]uint64 // size of the file system of a directory
	Inodes     map[string]uint64
	Mounts     map[string]string // options of the mount
	Interfaces []string
	Limits     map[string][2]uint64
	Hostname   string
	Cwd        string
	Masked     map[string]int    // readable bytes of a masked path; -1: it does not exist
	Agent      map[string]string // what can be done with the agent's volume and the agent in it
	Env        []string
}

var dirs = []string{"/", "/sandfarm", "/workspace", "/tmp", "/home/sandbox", "/run/sandfarm", "/dev/shm"}

func main() {
	var err error
	switch os.Args[1] {
	case "wait":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGUSR2)
		<-stop
	case "facts":
		err = json.NewEncoder(os.Stdout).Encode(facts())
	case "listen": // answers each connection to an abstract socket with the user id of the peer
		listen("@probe")
	case "serve": // that, and greets each connection to a port of the loopback
		go listen("@probe")
		serve("127.0.0.1:7000")
	case "remember": // answers each connection to an abstract socket with how many there were
		remember("@memory")
	case "recall":
		err = recall("@memory")
	case "join": // connects its input and output to what listens
		err = join("@probe")
	case "nothing":
	case "install-agent": // what sandfarm does in the first container of a Pod
		var self []byte
		if self, err = os.ReadFile(os.Args[0]); err == nil {
			err = os.WriteFile(os.Args[2]+"/agent", self, 0o555)
		}
	case "echo":
		_, err = io.Copy(os.Stdout, os.Stdin)
	case "flood":
		n, _ := strconv.Atoi(os.Args[2])
		chunk := make([]byte, 1<<20)
		for range n {
			_, err = os.Stdout.Write(chunk)
		}
	case "fail":
		fmt.Fprintln(os.Stderr, "no such luck")
		os.Exit(3)
	case "forks":
		fmt.Println(forks())
	case "eat":
		var held [][]byte
		for {
			chunk := make([]byte, 1<<20)
			for i := 0; i < len(chunk); i += 4096 {
				chunk[i] = 1
			}
			held = append(held, chunk)
			runtime.KeepAlive(held)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// forks counts how many children can run at once, 1000 at most.
func forks() int {
	n := 0
	for ; n < 1000; n++ {
		if exec.Command(os.Args[0], "wait").Start() != nil {
			break
		}
	}
	return n
}

func facts() Facts {
	f := Facts{
		Status: status("/proc/self/status"), Init: status("/proc/1/status"), Calls: map[string]string{},
		Writable: map[string]string{}, Execs: map[string]string{}, Bytes: map[string]uint64{}, Inodes: map[string]uint64{},
		Mounts: map[string]string{}, Limits: map[string][2]uint64{}, Masked: map[string]int{}, Env: os.Environ(),
	}
	f.Hostname, _ = os.Hostname()
	f.Cwd, _ = os.Getwd()
	interfaces, _ := os.ReadDir("/sys/class/net") // net.Interfaces uses netlink, which is denied
	for _, i := range interfaces {
		f.Interfaces = append(f.Interfaces, i.Name())
	}
	for _, dir := range dirs {
		f.Writable[dir] = text(os.WriteFile(dir+"/probe-file", []byte("x"), 0o600))
		f.Execs[dir] = text(execCopy(dir))
		var fs unix.Statfs_t
		_ = unix.Statfs(dir, &fs)
		f.Bytes[dir], f.Inodes[dir] = fs.Blocks*uint64(fs.Bsize), fs.Files
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.SplitSeq(string(mounts), "\n") {
		if fields := strings.Fields(line); len(fields) > 6 {
			f.Mounts[fields[4]] = fields[5] + "," + fields[len(fields)-1]
		}
	}
	for _, path := range []string{"/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug"} {
		data, err := os.ReadFile(path)
		f.Masked[path] = len(data)
		if errors.Is(err, os.ErrNotExist) {
			f.Masked[path] = -1
		}
	}
	f.Agent = map[string]string{"execute": text(exec.Command("/sandfarm/agent", "nothing").Run())}
	for _, path := range []string{"/sandfarm", "/sandfarm/agent"} {
		file, err := os.Open(path)
		_ = file.Close()
		f.Agent["open "+path] = text(err)
		watches, _ := unix.InotifyInit1(unix.IN_CLOEXEC)
		_, err = unix.InotifyAddWatch(watches, path, unix.IN_ALL_EVENTS)
		_ = unix.Close(watches)
		f.Agent["watch "+path] = text(err)
	}
	for name, call := range calls() {
		f.Calls[name] = text(call())
	}
	for name, number := range map[string]int{"core": unix.RLIMIT_CORE, "nofile": unix.RLIMIT_NOFILE} {
		var r unix.Rlimit
		_ = unix.Getrlimit(number, &r)
		f.Limits[name] = [2]uint64{r.Cur, r.Max}
	}
	return f
}

func calls() map[string]func() error {
	raw := func(number uintptr, args ...uintptr) func() error {
		return func() error {
			var a [6]uintptr
			copy(a[:], args)
			if _, _, errno := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
				return errno
			}
			return nil
		}
	}
	socket := func(family, kind, protocol int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, protocol)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}
	}
	option := func(family, kind, level, name int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.SetsockoptInt(fd, level, name, 1)
		}
	}
	var params [120]byte
	return map[string]func() error{
		"getpid":          raw(unix.SYS_GETPID),
		"io_uring_setup":  raw(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params))),
		"keyctl":          raw(unix.SYS_KEYCTL, 0, ^uintptr(2), 0),
		"add_key":         raw(unix.SYS_ADD_KEY),
		"request_key":     raw(unix.SYS_REQUEST_KEY),
		"userfaultfd":     raw(unix.SYS_USERFAULTFD, 1),
		"bpf":             raw(unix.SYS_BPF),
		"mount":           raw(unix.SYS_MOUNT),
		"unshare user":    raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		"socket AF_VSOCK": socket(40, unix.SOCK_STREAM, 0),
		"socket AF_ALG":   socket(38, unix.SOCK_SEQPACKET, 0),
		"socket netlink":  socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT),
		"socket AF_INET":  socket(unix.AF_INET, unix.SOCK_STREAM, 0),
		"socket AF_UNIX":  socket(unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"socket MPTCP":    socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP),
		"seccomp":         raw(unix.SYS_SECCOMP, 1),
		"prctl seccomp":   raw(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, 2),
		"io_setup":        raw(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&params))),
		"sync":            raw(unix.SYS_SYNC),
		"setrlimit core":  func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) }, // and the limit stays
		"SO_RCVBUF":       option(unix.AF_INET, unix.SOCK_STREAM, unix.SOL_SOCKET, unix.SO_RCVBUF),
		"TCP_MD5SIG":      option(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, unix.TCP_MD5SIG),

		"IP_ADD_MEMBERSHIP":  option(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP),
		"IPV6_FLOWLABEL_MGR": option(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_IPV6, 32),

		"setuid 0": func() error { return syscall.Setuid(0) },
	}
}

// execCopy runs a copy of this program from a directory.
func execCopy(dir string) error {
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		return err
	}
	path := dir + "/probe-copy"
	if err := os.WriteFile(path, self, 0o700); err != nil {
		return err
	}
	defer os.Remove(path)
	return exec.Command(path, "nothing").Run()
}

func status(path string) map[string]string {
	data, _ := os.ReadFile(path)
	found := map[string]string{}
	for line := range strings.SplitSeq(string(data), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			found[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	return found
}

func text(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func remember(socket string) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	for n := 1; ; n++ {
		conn, err := l.Accept()
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(conn, "%d", n)
		_ = conn.Close()
	}
}

func recall(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, conn)
	return err
}

func join(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	go func() { _, _ = io.Copy(conn, os.Stdin) }()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

// listen sends every peer of a unix socket its user id, and then echoes what it sends.
func listen(socket string) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			panic(err)
		}
		raw, err := conn.(*net.UnixConn).SyscallConn()
		if err != nil {
			panic(err)
		}
		_ = raw.Control(func(fd uintptr) {
			cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
			if err == nil {
				fmt.Fprintf(conn, "%d\n", cred.Uid)
			}
		})
		go func() { _, _ = io.Copy(conn, conn) }()
	}
}

// serve writes a greeting to each connection, and ends it.
func serve(address string) {
	l, err := net.Listen("tcp", address)
	for err == nil {
		var conn net.Conn
		if conn, err = l.Accept(); err == nil {
			_, _ = io.WriteString(conn, "inside")
			_ = conn.Close()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
