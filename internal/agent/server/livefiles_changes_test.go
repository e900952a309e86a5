package server_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// replacing is a write that replaces without conditions.
var replacing = farm.FSWrite{How: farm.FSReplace, Mode: -1}

// readFS reads a whole file.
func readFS(t *testing.T, l client.Live, path string) string {
	t.Helper()
	var all bytes.Buffer
	inode := uint64(0)
	for {
		head, piece, err := l.FSRead(t.Context(), path, int64(all.Len()), 1<<40, inode)
		testbed.Must(t, err)
		_, err = io.Copy(&all, piece)
		piece.Close()
		testbed.Must(t, err)
		inode = head.Inode
		if int64(all.Len()) >= head.Entry.Size {
			return all.String()
		}
	}
}

// A reader of a large file gets all of it, though another file has taken its name after the first piece.
func TestAFileIsReplacedWhileItIsRead(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	at := filepath.Join(dir, "f")
	write := func(content string) {
		t.Helper()
		_, err := l.FSWrite(t.Context(), at, replacing, strings.NewReader(content))
		testbed.Must(t, err)
	}
	first := strings.Repeat("first", agent.PieceBytes/2) // more than two pieces
	write(first)
	var got strings.Builder
	for inode := uint64(0); got.Len() < len(first); {
		head, piece, err := l.FSRead(t.Context(), at, int64(got.Len()), int64(len(first)), inode)
		testbed.Must(t, err)
		_, err = io.Copy(&got, piece)
		piece.Close()
		testbed.Must(t, err)
		if inode == 0 {
			write(strings.Repeat("second", agent.PieceBytes/2))
		}
		inode = head.Inode
	}
	testbed.Check(t, got.String() == first, "the pieces are not those of the first file")
	if now := readFS(t, l, at); !strings.HasPrefix(now, "second") {
		t.Errorf("a new reader gets %q", now[:20])
	}
	for i := range 40 { // more than are kept open
		name := filepath.Join(dir, fmt.Sprint(i))
		_, err := l.FSWrite(t.Context(), name, replacing, strings.NewReader(first))
		testbed.Must(t, err)
		_, piece, err := l.FSRead(t.Context(), name, 0, 10, 0)
		testbed.Must(t, err)
		piece.Close()
	}
	if got := readFS(t, l, filepath.Join(dir, "0")); got != first {
		t.Errorf("%d bytes of a file that is not kept any more", len(got))
	}
}

func TestFilesAnywhere(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	content := strings.Repeat("0123456789", agent.PieceBytes/4) // more than two pieces
	made, err := l.FSWrite(t.Context(), at("a/b.txt"), replacing, strings.NewReader(content))
	testbed.Must(t, err)
	if made.Path != at("a/b.txt") || made.Type != "file" || made.Size != int64(len(content)) || made.Mode != "0644" || made.UID != os.Getuid() || made.GID != os.Getgid() {
		t.Errorf("%+v", made)
	}
	got := readFS(t, l, at("a/b.txt"))
	testbed.Check(t, got == content, "read %d bytes of %d", len(got), len(content))
	if got, err := l.FSChange(t.Context(), at("a/b.txt"), 0o750, nil); err != nil || got.Mode != "0750" || got.ETag == made.ETag {
		t.Errorf("chmod: %+v, %v", got, err)
	}
	if got, err := l.FSWrite(t.Context(), at("a/b.txt"), replacing, strings.NewReader("new")); err != nil || got.Mode != "0750" || got.Size != 3 {
		t.Errorf("a file that is replaced keeps its mode: %+v, %v", got, err)
	}
	how := farm.FSWrite{How: farm.FSAppend, Mode: -1}
	if _, err := l.FSWrite(t.Context(), at("a/b.txt"), how, strings.NewReader("er")); err != nil || readFS(t, l, at("a/b.txt")) != "newer" {
		t.Errorf("append: %v", err)
	}
	how = farm.FSWrite{How: farm.FSAt, Mode: -1, Offset: 1}
	if _, err := l.FSWrite(t.Context(), at("a/b.txt"), how, strings.NewReader("EW")); err != nil || readFS(t, l, at("a/b.txt")) != "nEWer" {
		t.Errorf("at an offset: %v", err)
	}
	before, err := l.FSStat(t.Context(), at("a/b.txt"))
	testbed.Must(t, err)
	how = farm.FSWrite{How: farm.FSOverwrite, Mode: -1}
	if got, err := l.FSWrite(t.Context(), at("a/b.txt"), how, strings.NewReader("in")); err != nil || readFS(t, l, at("a/b.txt")) != "in" || got.Mode != before.Mode ||
		strings.Split(got.ETag, "-")[0] != strings.Split(before.ETag, "-")[0] { // which is its inode
		t.Errorf("in place: %+v, %v", got, err)
	}
	if got, err := l.FSLink(t.Context(), at("link"), "a/b.txt"); err != nil || got.Type != "symlink" || got.Target != "a/b.txt" {
		t.Errorf("link: %+v, %v", got, err)
	}
	if _, err := l.FSWrite(t.Context(), at("link"), replacing, strings.NewReader("through")); err != nil || readFS(t, l, at("a/b.txt")) != "through" {
		t.Errorf("through a link: %v", err)
	}
	if got, err := l.FSCopy(t.Context(), at("a"), at("c/a2")); err != nil || got.Type != "dir" || readFS(t, l, at("c/a2/b.txt")) != "through" {
		t.Errorf("copy: %+v, %v", got, err)
	}
	if got, err := l.FSMove(t.Context(), at("c/a2"), at("d")); err != nil || got.Path != at("d") {
		t.Errorf("move: %+v, %v", got, err)
	}
	list, err := l.FSList(t.Context(), dir, 2, 100, "")
	testbed.Must(t, err)
	var names []string
	for _, e := range list.Entries {
		names = append(names, strings.TrimPrefix(e.Path, dir+"/"))
	}
	testbed.Diff(t, "listed", "a a/b.txt c d d/b.txt link", strings.Join(names, " "))
	of, err := os.Stat(at("a"))
	testbed.Must(t, err)
	e := list.Entries[0]
	testbed.Check(t, e.Size == 0 && e.DirSize == of.Size() && e.DirSize != 0, "a directory: %+v", e)
	testbed.Must(t, l.FSRemove(t.Context(), at("a")))
	_, err = l.FSStat(t.Context(), at("a"))
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "after its removal: %v", err)
}

// Each error has a code, and the kernel's name of it.
func TestProblemsAnywhere(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	testbed.Must(t, os.WriteFile(at("file"), []byte("x"), 0o600))
	testbed.Must(t, os.Mkdir(at("dir"), 0o700))
	testbed.Must(t, syscall.Mkfifo(at("pipe"), 0o600))
	testbed.Must(t, os.Symlink("loop", at("loop")))
	write := func(path string) error {
		_, err := l.FSWrite(t.Context(), path, replacing, strings.NewReader("x"))
		return err
	}
	read := func(path string) error {
		_, p, err := l.FSRead(t.Context(), path, 0, 1, 0)
		if err == nil {
			p.Close()
		}
		return err
	}
	entry := func(_ farm.FSEntry, err error) error { return err }
	for name, c := range map[string]struct {
		err  error
		code farm.Code
		text string
	}{
		"read missing":     {read(at("none")), farm.CodeNotFound, "ENOENT"},
		"read directory":   {read(at("dir")), farm.CodeConflict, "EISDIR"},
		"read pipe":        {read(at("pipe")), farm.CodeInvalid, "regular"},
		"read device":      {read("/dev/zero"), farm.CodeInvalid, "regular"},
		"read loop":        {read(at("loop")), farm.CodeInvalid, "ELOOP"},
		"write directory":  {write(at("dir")), farm.CodeConflict, "EISDIR"},
		"write pipe":       {write(at("pipe")), farm.CodeInvalid, "regular"},
		"write below file": {write(at("file/x")), farm.CodeConflict, "ENOTDIR"},
		"write read-only":  {write("/sys/kernel/x"), farm.CodeInvalid, "E"},
		"no space":         {writeFull(t, l), farm.CodeInvalid, "regular"},
		"mkdir on file":    {entry(l.FSMkdir(t.Context(), at("file"), -1)), farm.CodeConflict, "ENOTDIR"},
		"link exists":      {entry(l.FSLink(t.Context(), at("file"), "x")), farm.CodeConflict, "EEXIST"},
		"into itself":      {entry(l.FSCopy(t.Context(), at("dir"), at("dir/in"))), farm.CodeInvalid, "into itself"},
		"onto itself":      {entry(l.FSCopy(t.Context(), at("file"), at("file"))), farm.CodeInvalid, "onto itself"},
		"onto directory":   {entry(l.FSMove(t.Context(), at("file"), at("dir"))), farm.CodeConflict, "directory"},
		"chmod missing":    {entry(l.FSChange(t.Context(), at("none"), 0o600, nil)), farm.CodeNotFound, "ENOENT"},
		"no change":        {entry(l.FSChange(t.Context(), at("file"), -1, nil)), farm.CodeInvalid, "missing"},
		"chmod too large":  {entry(l.FSChange(t.Context(), at("file"), farm.MaxMode+1, nil)), farm.CodeInvalid, "mode"},
		"remove root":      {l.FSRemove(t.Context(), "/"), farm.CodeConflict, "EBUSY"},
		"remove mount":     {l.FSRemove(t.Context(), "/proc"), farm.CodeConflict, "EBUSY"},
		"remove missing":   {l.FSRemove(t.Context(), at("none")), farm.CodeNotFound, "ENOENT"},
		"dots":             {l.FSRemove(t.Context(), dir+"/../x"), farm.CodeInvalid, ".."},
	} {
		if farm.CodeOf(c.err) != c.code || !strings.Contains(farm.MessageOf(c.err), c.text) {
			t.Errorf("%s: %s %v", name, farm.CodeOf(c.err), c.err)
		}
	}
	got, err := l.FSChange(t.Context(), at("file"), farm.MaxMode, nil)
	testbed.Check(t, err == nil && got.Mode == "7777", "the largest mode: %+v, %v", got, err)
}

// writeFull writes to a device that is always full, which is not a regular file.
func writeFull(t *testing.T, l client.Live) error {
	_, err := l.FSWrite(t.Context(), "/dev/full", farm.FSWrite{How: farm.FSAppend, Mode: -1}, strings.NewReader("x"))
	return err
}

func TestConditionsOfAWrite(t *testing.T) {
	t.Parallel()
	l, file := agenttest.StartWithFiles(t).Live(), filepath.Join(t.TempDir(), "f")
	write := func(match, none string) (farm.FSEntry, error) {
		return l.FSWrite(t.Context(), file, farm.FSWrite{How: farm.FSReplace, Mode: -1, Match: match, NoMatch: none}, strings.NewReader("x"))
	}
	unmet := func(name string, err error) {
		t.Helper()
		testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict && strings.HasPrefix(farm.MessageOf(err), farm.UnmetPrefix), "%s: %v", name, err)
	}
	_, err := write("*", "")
	unmet("match anything, nothing there", err)
	first, err := write("", "*")
	testbed.Must(t, err)
	_, err = write("", "*")
	unmet("nothing there, but something is", err)
	second, err := write(first.ETag, "")
	testbed.Must(t, err)
	_, err = write(first.ETag, "")
	unmet("an old version", err)
	_, err = write("", second.ETag)
	unmet("not this version", err)

	// Of callers at once, one wins.
	var wins, losses sync.Map
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			if _, err := write(second.ETag, ""); err == nil {
				wins.Store(n, true)
			} else {
				losses.Store(n, err)
			}
		})
	}
	all.Wait()
	count := func(m *sync.Map) (n int) { m.Range(func(any, any) bool { n++; return true }); return n }
	if count(&wins) != 1 || count(&losses) != 7 {
		t.Errorf("%d won, %d lost", count(&wins), count(&losses))
	}
}

func TestATarAnywhere(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	want := map[string]string{"empty": "", "odd": strings.Repeat("o", 700), "large": strings.Repeat("0123456789abcdef", agent.PieceBytes/6)}
	for n := range 300 {
		want[fmt.Sprintf("d%d/f%d", n%7, n)] = strconv.Itoa(n)
	}
	for name, content := range want {
		testbed.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	testbed.Must(t, os.Symlink("odd", filepath.Join(dir, "link")))
	testbed.Must(t, syscall.Mkfifo(filepath.Join(dir, "d0", "a pipe"), 0o600))
	testbed.Must(t, syscall.Mkfifo(filepath.Join(dir, "zz"), 0o600))
	for _, name := range []string{"d3/b\xff", "kept\xff"} { // the one before the large file, and after it
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "d3", "hole"), nil, 0o600))
	testbed.Must(t, os.Truncate(filepath.Join(dir, "d3", "hole"), int64(len(want["large"]))+1))
	var packed bytes.Buffer
	pieces, leftOut := 0, 0
	for next := ""; ; pieces++ {
		head, piece, err := l.FSPack(t.Context(), dir, next, int64(len(want["large"])))
		testbed.Must(t, err)
		_, err = io.Copy(&packed, piece)
		piece.Close()
		testbed.Must(t, err)
		leftOut += head.LeftOut
		if next = head.Next; next == "" {
			break
		}
	}
	testbed.Must(t, tar.NewWriter(&packed).Close())
	testbed.Check(t, pieces >= 2, "%d pieces", pieces)
	testbed.Diff(t, "were left out", 5, leftOut)
	sent := packed.Bytes()
	read, got := tar.NewReader(bytes.NewReader(sent)), map[string]string{}
	for {
		h, err := read.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testbed.Must(t, err)
		if h.Typeflag == tar.TypeReg {
			raw, err := io.ReadAll(read)
			testbed.Must(t, err)
			got[h.Name] = string(raw)
		} else if h.Typeflag == tar.TypeSymlink && h.Linkname != "odd" {
			t.Errorf("%+v", h)
		}
	}
	for name, content := range want {
		testbed.Check(t, got[name] == content, "%s has %d bytes, want %d", name, len(got[name]), len(content))
	}
	to := filepath.Join(t.TempDir(), "new", "place")
	made, err := l.FSUnpack(t.Context(), to, bytes.NewReader(sent))
	testbed.Require(t, err == nil && made.Path == to && made.Type == "dir", "unpack: %+v, %v", made, err)
	raw, err := os.ReadFile(filepath.Join(to, "large"))
	testbed.Check(t, err == nil && string(raw) == want["large"], "unpacked: %d bytes, %v", len(raw), err)
}

// The process that serves files is ended by user code: the next request starts it again.
func TestFilesProcessIsStartedAgain(t *testing.T) {
	t.Parallel()
	a, dir := agenttest.StartWithFiles(t), t.TempDir()
	l := a.Live()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600))
	for range 3 {
		got := readFS(t, l, filepath.Join(dir, "f"))
		testbed.Require(t, got == "x", "%q", got)
		pid := strings.Fields(readFS(t, l, "/proc/self/stat"))[0] // of the process itself
		n, err := strconv.Atoi(pid)
		testbed.Must(t, err)
		testbed.Require(t, n != os.Getpid(), "the agent itself serves files")
		testbed.Must(t, syscall.Kill(n, syscall.SIGKILL))
	}
}

func TestMetadataOfFiles(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "metadata") // as sandboxes have them, a tmpfs: ext4 takes less
	testbed.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, file := agenttest.StartWithFiles(t).Live(), filepath.Join(dir, "f")
	write := func(metadata map[string]string) (farm.FSEntry, error) {
		return l.FSWrite(t.Context(), file, farm.FSWrite{How: farm.FSOverwrite, Mode: -1, Metadata: metadata}, strings.NewReader("x"))
	}
	full := map[string]string{}
	for n := range farm.MaxMetadata {
		full[fmt.Sprintf("%0*d", farm.MaxMetadataKey, n)] = strings.Repeat("v", 4+8*n)
	}
	full[strings.Repeat("0", farm.MaxMetadataKey)] = strings.Repeat("v", farm.MaxMetadataValue)
	for name, metadata := range map[string]map[string]string{"some": {"author": "me", "b": ""}, "other": {"b": "c"}, "all that there may be": full} {
		e, err := write(metadata)
		testbed.Require(t, err == nil && maps.Equal(e.Metadata, metadata), "%s: %v, %v", name, e.Metadata, err)
		e, err = write(nil)
		testbed.Check(t, err == nil && maps.Equal(e.Metadata, metadata), "%s, kept: %v, %v", name, e.Metadata, err)
	}
	if _, err := write(full); err != nil {
		t.Error(err)
	}
	for key := range full { // a sandbox may set no attribute that has the length of an access control list
		n, err := unix.Getxattr(file, farm.MetadataPrefix+key, nil)
		testbed.Check(t, err == nil && n%8 != 4, "%s has %d bytes, %v", key, n, err)
	}
	testbed.Must(t, os.Rename(file, file+"2"))
	e, err := l.FSStat(t.Context(), file+"2")
	testbed.Check(t, err == nil && maps.Equal(e.Metadata, full), "renamed: %v, %v", e.Metadata, err)
	testbed.Must(t, os.Rename(file+"2", file))
	e, err = write(map[string]string{})
	testbed.Check(t, err == nil && e.Metadata == nil, "removed: %v, %v", e.Metadata, err)
	// Programs set attributes too. Those that no caller could set are not shown.
	for key, value := range map[string]string{
		"by": "hand", strings.Repeat("k", farm.MaxMetadataKey+1): "", "long": strings.Repeat("v", farm.MaxMetadataValue+1), "line": "a\nb", "é": "x",
	} {
		testbed.Must(t, unix.Setxattr(file, farm.MetadataPrefix+key, []byte(value), 0))
	}
	testbed.Must(t, unix.Setxattr(file, "user.other", []byte("x"), 0))
	e, err = l.FSStat(t.Context(), file)
	testbed.Check(t, err == nil && maps.Equal(e.Metadata, map[string]string{"by": "hand"}), "set by programs: %v, %v", e.Metadata, err)
}
