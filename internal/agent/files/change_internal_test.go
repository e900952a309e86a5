package files

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// someTree makes a directory with a file, a link, a pipe and what is being written.
func someTree(t *testing.T, top string, when time.Time) {
	t.Helper()
	testbed.Must(t, os.MkdirAll(filepath.Join(top, "d", stagingDir), 0o700))
	testbed.Must(t, os.WriteFile(filepath.Join(top, "d", stagingDir, "half"), nil, 0o600))
	testbed.Must(t, os.WriteFile(filepath.Join(top, "d", "f"), []byte("content"), 0o600))
	testbed.Must(t, os.Symlink("nowhere", filepath.Join(top, "d", "l")))
	testbed.Must(t, unix.Mkfifo(filepath.Join(top, "d", "p"), 0o600))
	for name, mode := range map[string]uint32{"d/f": 0o4750, "d": 0o510} {
		testbed.Must(t, unix.Chmod(filepath.Join(top, name), mode))
		testbed.Must(t, os.Chtimes(filepath.Join(top, name), when, when))
	}
}

func TestACopyHasModesTimesAndLinks(t *testing.T) {
	t.Parallel()
	top, when := t.TempDir(), time.Unix(1_000_000_000, 5000)
	someTree(t, top, when)
	t.Cleanup(func() {
		for _, name := range []string{"d", "c/d"} {
			_ = os.Chmod(filepath.Join(top, name), 0o700) //nolint:gosec // so that it can be removed
		}
	})
	testbed.Must(t, os.Mkdir(filepath.Join(top, "c"), 0o700))
	testbed.Must(t, replicate(anywhere{}, filepath.Join(top, "d"), filepath.Join(top, "c", "d"), nil))
	got := map[string]string{}
	testbed.Must(t, filepath.WalkDir(filepath.Join(top, "c"), func(p string, e fs.DirEntry, err error) error {
		testbed.Must(t, err)
		info, err := e.Info()
		testbed.Must(t, err)
		if name := strings.TrimPrefix(p, filepath.Join(top, "c")); name != "" {
			got[name] = info.Mode().String()
			if e.Type() != fs.ModeSymlink && !info.ModTime().Equal(when) {
				t.Errorf("%s is of %s", name, info.ModTime())
			}
		}
		return nil
	}))
	testbed.Diff(t, "copied", map[string]string{"/d": "dr-x--x---", "/d/f": "urwxr-x---", "/d/l": "Lrwxrwxrwx"}, got)
	raw, err := os.ReadFile(filepath.Join(top, "c", "d", "f"))
	testbed.Check(t, err == nil && string(raw) == "content", "%q, %v", raw, err)
}

func TestACopyThatIsStoppedLeavesNothing(t *testing.T) {
	t.Parallel()
	top, stopped := t.TempDir(), errors.New("stopped")
	someTree(t, top, time.Now())
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(top, "d"), 0o700) }) //nolint:gosec // so that it can be removed
	left := 2
	err := replicate(anywhere{}, filepath.Join(top, "d"), filepath.Join(top, "c"), func() error {
		if left--; left < 0 {
			return stopped
		}
		return nil
	})
	if !errors.Is(err, stopped) {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(top); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// The target of a link is relative to the directory that has the link, not to the path by which that was reached.
func TestAWriteFollowsLinksAsTheKernelDoes(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	testbed.Must(t, os.MkdirAll(filepath.Join(top, "a", "b"), 0o700))
	testbed.Must(t, os.Symlink("a/b", filepath.Join(top, "l")))
	testbed.Must(t, os.Symlink("../f", filepath.Join(top, "a", "b", "up")))
	p, err := throughLinks(filepath.Join(top, "l", "up"))
	testbed.Must(t, err)
	testbed.Must(t, (&Server{}).replace(p, farm.FSWrite{How: farm.FSReplace, Mode: -1}, strings.NewReader("x")))
	raw, err := os.ReadFile(filepath.Join(top, "a", "f"))
	testbed.Check(t, err == nil && string(raw) == "x", "%q, %v", raw, err)
	_, err = os.Lstat(filepath.Join(top, "f"))
	testbed.Check(t, errors.Is(err, fs.ErrNotExist), "another file was written: %v", err)
}

func TestTheStagingNameIsReservedAtAnyLevel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := Open(dir)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	for _, p := range []string{stagingDir, stagingDir + "/x", "d/" + stagingDir, "d/" + stagingDir + "/x"} {
		_, err := w.Write(p, 0o644, strings.NewReader("x"))
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "%s: %v", p, err)
	}
	before := w.Snapshot()
	testbed.Must(t, os.MkdirAll(filepath.Join(dir, "d", stagingDir), 0o700)) // as writes of a file anywhere make it
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "d", stagingDir, "half"), nil, 0o600))
	files, skipped, _ := before.Changes(0, 0)
	testbed.Check(t, len(files) == 0 && skipped == 0, "changed: %+v, %d", files, skipped)
}

// User code may put a pipe, a link or a file into the agent's directory.
func TestPutReplacesLinksAndPipes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	testbed.Must(t, os.WriteFile(other, []byte("theirs"), 0o600))
	for name, make := range map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"file":    func(path string) error { return os.WriteFile(path, []byte("old"), 0o400) },
		"pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":    func(path string) error { return os.Symlink(other, path) },
	} {
		path := filepath.Join(dir, name)
		testbed.Must(t, make(path))
		err := Put(path, []byte("ours"))
		testbed.Check(t, err == nil, "%s: %v", name, err)
		got, err := os.ReadFile(path)
		testbed.Check(t, err == nil && string(got) == "ours", "%s: %q, %v", name, got, err)
	}
	got, _ := os.ReadFile(other)
	testbed.Check(t, string(got) == "theirs", "the link's target holds %q", got)
	left, _ := filepath.Glob(filepath.Join(dir, "*-*"))
	testbed.Check(t, len(left) == 0, "left behind: %v", left)
}

// User code may replace the staging directory: uploads still work, and nothing is written outside it.
func TestUploadsReplaceAForeignStagingDirectory(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	for name, plant := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink(outside, path) },
		"file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work := t.TempDir()
			w, err := Open(work)
			testbed.Must(t, err)
			t.Cleanup(func() { _ = w.Close() })
			testbed.Must(t, plant(filepath.Join(work, stagingDir)))
			_, err = w.Write("f", 0o644, strings.NewReader("x"))
			testbed.Must(t, err)
			got, err := os.ReadFile(filepath.Join(work, "f"))
			testbed.Require(t, err == nil && string(got) == "x", "%q, %v", got, err)
			left, _ := os.ReadDir(outside)
			testbed.Require(t, len(left) == 0, "written outside: %v", left)
		})
	}
}

func TestATreeThatIsTooDeepIsACallersError(t *testing.T) {
	t.Parallel()
	if err := Problem(&os.PathError{Op: "openat", Path: "d", Err: unix.EMFILE}, "d"); farm.CodeOf(err) != farm.CodeTooLarge {
		t.Fatal(err)
	}
}

// makeFiles makes empty files in a workspace.
func makeFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		testbed.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
}

// A virtual environment in the workspace made thousands of artifacts. What is in such folders is counted, for the outermost one.
func TestFoldersOfInstalledFilesAreLeftOutAndCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := Open(dir)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	makeFiles(t, dir, ".venv/old", "src/old.py")
	before := w.Snapshot()
	makeFiles(t, dir, ".venv/bin/python", ".venv/lib/__pycache__/a.pyc", ".venv/lib/venv/x", "node_modules/a/node_modules/b/c.js", "app/node_modules/d.js",
		"src/__pycache__/m.pyc", "src/m.py", ".git/HEAD", ".cache/pip/x", "venv/pyvenv.cfg", "venv2/kept", "data/.gitignore", "zz/venv", ".venvs/kept")
	files, skipped, left := before.Changes(0, 0)
	var names []string
	for _, f := range files {
		names = append(names, f.Path)
	}
	diff := cmp.Diff([]string{".venvs/kept", "data/.gitignore", "src/m.py", "venv2/kept", "zz/venv"}, names)
	testbed.Check(t, diff == "" && skipped == 0, "%d skipped, changed (-want +got):\n%s", skipped, diff)
	want := []agent.LeftOut{
		{Folder: ".venv", Files: 3},
		{Folder: ".cache", Files: 1},
		{Folder: ".git", Files: 1},
		{Folder: "app/node_modules", Files: 1},
		{Folder: "node_modules", Files: 1},
		{Folder: "venv", Files: 1},
	}
	testbed.Diff(t, "left out", want, left)
	if f, _, err := w.Open(".venv/bin/python"); err != nil {
		t.Errorf("what is left out cannot be read: %v", err)
	} else {
		_ = f.Close()
	}
	_, _, left = w.Snapshot().Changes(0, 0)
	testbed.Check(t, left == nil, "without a change: %+v", left)
}

func TestFoldersThatAreNotNamedAreCountedTogether(t *testing.T) {
	t.Parallel()
	for _, n := range []int{agent.MaxLeftOut - 1, agent.MaxLeftOut, agent.MaxLeftOut + 1, agent.MaxLeftOut + 2} {
		counts := map[string]int{"bad\xff/venv": 100}
		for i := range n {
			counts[fmt.Sprintf("%02d/venv", i)] = 1
		}
		left := maxLeftOut(counts)
		last, named := left[len(left)-1], min(n, agent.MaxLeftOut)
		if len(left) != named+1 || last.Folder != "" || last.Files != 100+n-named || left[0].Folder != "00/venv" {
			t.Errorf("%d folders: %+v", n, left)
		}
	}
}

func TestTheDocumentationNamesTheFolders(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"docs/rest.md", "api/wire/result.go"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "..", file))
		testbed.Must(t, err)
		for _, name := range leftOut {
			testbed.Check(t, strings.Contains(string(raw), name), "%s does not name %s", file, name)
		}
	}
}

// Code may set any time. One beyond the year 9999 cannot be written as JSON: the listing failed, and so did the job that made the file.
func TestTimesThatJSONCannotWriteAreBounded(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]int64{
		math.MinInt64: firstSecond, firstSecond: firstSecond, -1: -1, 0: 0, 1_700_000_000: 1_700_000_000, lastSecond: lastSecond, lastSecond + 1: lastSecond, math.MaxInt64: lastSecond,
	} {
		got := (&info{st: unix.Stat_t{Mtim: unix.Timespec{Sec: seconds}}}).modTime().UTC()
		_, err := got.MarshalJSON()
		testbed.Check(t, err == nil && got.Unix() == want, "%d is %s, %v", seconds, got, err)
	}
}

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

// A compressed upload larger than the sandbox's memory ended the sandbox: what was written remained when the kernel had ended the writer.
func TestUploadsEndBeforeTheMemoryIsUsedUp(t *testing.T) {
	t.Parallel()
	const limit, free = 128 << 20, 8 << 20
	source := newSource(bytes.NewReader(make([]byte, 16<<20)))
	source.memory = func() (held, bound int64) { return limit - 3*free/2 + source.n, limit }
	file, err := os.CreateTemp(t.TempDir(), "")
	testbed.Must(t, err)
	if err := take(file, source); farm.CodeOf(err) != farm.CodeTooLarge {
		t.Errorf("take = %v, want %s", err, farm.CodeTooLarge)
	}
	if source.n < free/2 || source.n > free/2+2*memoryStep {
		t.Errorf("%d bytes were read, want about %d", source.n, free/2)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{"a", "b"} {
		testbed.Must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: 8 << 20}))
		_, err := w.Write(make([]byte, 8<<20))
		testbed.Must(t, err)
	}
	source = newSource(&archive)
	source.memory = func() (held, bound int64) { return limit - 3*free/2 + source.n, limit }
	top, err := openTree(t.TempDir())
	testbed.Must(t, err)
	defer top.close()
	err = unpack(top, "d", source, nil)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeTooLarge, "unpack = %v, want %s", err, farm.CodeTooLarge)
	_, err = stat(top, "d", false)
	testbed.Check(t, err != nil, "a part of an archive that did not fit was unpacked")
}
