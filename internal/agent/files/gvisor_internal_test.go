package files

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// gVisor follows a link that is opened with O_DIRECTORY and O_NOFOLLOW, and may lack openat2. Here the first fails, and so does the second:
// what works does not rest on them.
func TestLinksDoNotLeadOutUnderGVisor(t *testing.T) {
	t.Parallel()
	work, outside := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(os.WriteFile(filepath.Join(outside, "secret"), []byte("theirs"), 0o600))
	must(os.MkdirAll(filepath.Join(work, "d", "e"), 0o700))
	for name, target := range map[string]string{
		"out": outside, "up": "../../../../../../.." + outside, "d/in": "e", "d/through": "../out/secret", "d/both": "../d/in/../../up/secret", "loop": "loop",
	} {
		must(os.Symlink(target, filepath.Join(work, name)))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with its filter
		must(refuse(uint32(unix.SYS_OPENAT), unix.O_DIRECTORY|unix.O_NOFOLLOW))
		if fd, err := unix.Open(work, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err != unix.ENOSYS { //nolint:errorlint // as the kernel returns it
			t.Errorf("the filter does not work: %d, %v", fd, err)
			return
		}
		w, err := Open(work)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = w.Close() }()
		for _, p := range []string{"out/secret", "up/secret", "d/through", "d/both", "out", "loop"} {
			if f, _, err := w.Open(p); farm.CodeOf(err) != farm.CodeInvalid {
				t.Errorf("open %s: %v", p, err)
				_ = f.Close()
			}
		}
		for _, p := range []string{"out/new", "up/new", "d/in/../../up/new"} {
			_, err := w.Write(p, 0o644, strings.NewReader("ours"))
			testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "write %s: %v", p, err)
			err = w.Mkdir(p)
			testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "mkdir %s: %v", p, err)
			err = w.Move("d/e", p)
			testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "move to %s: %v", p, err)
		}
		if err := w.Remove("out/secret"); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("remove: %v", err)
		}
		before := w.Snapshot()
		_, err = w.Write("d/in/deep/file", 0o644, strings.NewReader("ours")) // a link inside the workspace is followed
		must(err)
		files, skipped, _ := before.Changes(0, 0)
		testbed.Check(t, len(files) == 1 && files[0].Path == "d/e/deep/file" && skipped == 0, "changes: %+v, %d", files, skipped)
		list, err := w.List("", agent.ListQuery{Recursive: true})
		testbed.Check(t, err == nil && len(list.Entries) == 10, "%d entries, %v: %+v", len(list.Entries), err, list.Entries)
		var archive bytes.Buffer
		must(w.WriteTar("d", &archive))
		must(w.PutTar("d/in", &archive))
		must(w.Remove("out"))
		must(w.Remove("d"))
	}()
	<-done
	left, err := os.ReadDir(outside)
	testbed.Check(t, err == nil && len(left) == 1 && left[0].Name() == "secret", "outside: %v, %v", left, err)
}

// refuse makes a system call fail with ENOSYS on this thread, if its third argument has all of some flags, and openat2 always.
func refuse(call, flags uint32) error {
	low := uint32(32) // the lower half of args[2]
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		low += 4
	}
	const ret = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT2, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: ret},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 4},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: low},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: flags},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: flags, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: ret},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}
