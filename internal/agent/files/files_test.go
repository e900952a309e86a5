package files_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestFilesRoundTrip(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	entry, err := a.WriteMode(t.Context(), "/workspace/d/ü.txt", 0o755, strings.NewReader("0123456789"))
	testbed.Must(t, err)
	testbed.Check(t, entry.Path == "d/ü.txt" && entry.Size == 10 && entry.Mode == "0755" && entry.Type == "file", "entry = %+v", entry)
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 0, "0123456789"}, {3, 4, "3456"}, {-2, 0, "89"}, {-99, 3, "012"}, {10, 0, ""}, {8, 99, "89"}} {
		r, whole, err := a.Open(t.Context(), "d/ü.txt", c.offset, c.length)
		testbed.Must(t, err)
		got, err := io.ReadAll(r)
		testbed.Must(t, err)
		testbed.Must(t, r.Close())
		testbed.Check(t, string(got) == c.want && whole.Size == 10 && whole.Path == "d/ü.txt", "%d+%d: %q, %+v", c.offset, c.length, got, whole)
	}
	testbed.Must(t, a.Move(t.Context(), "d/ü.txt", "e/f/g"))
	testbed.Must(t, a.Mkdir(t.Context(), "z/y"))
	list, err := a.List(t.Context(), "", agent.ListQuery{Recursive: true})
	testbed.Must(t, err)
	var names []string
	for _, e := range list.Entries {
		names = append(names, e.Type+" "+e.Path)
	}
	diff := cmp.Diff([]string{"dir d", "dir e", "dir e/f", "file e/f/g", "dir z", "dir z/y"}, names)
	testbed.Check(t, diff == "" && !list.More, "more %v, entries (-want +got):\n%s", list.More, diff)
	list, err = a.List(t.Context(), ".", agent.ListQuery{Limit: 2})
	testbed.Check(t, err == nil && len(list.Entries) == 2 && list.More, "limited: %+v, %v", list, err)
	list, err = a.List(t.Context(), "e/f/g", agent.ListQuery{})
	testbed.Check(t, err == nil && len(list.Entries) == 1 && list.Entries[0].Path == "e/f/g", "list of a file: %+v, %v", list, err)
	testbed.Must(t, a.Remove(t.Context(), "e"))
	_, err = a.Stat(t.Context(), "e/f/g")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "stat of a removed file: %v", err)
}

func TestFilesRefuse(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	ctx := t.Context()
	testbed.Must(t, os.Symlink("/etc/passwd", filepath.Join(a.Workspace, "passwd")))
	testbed.Must(t, os.Symlink("/etc", filepath.Join(a.Workspace, "etc")))
	testbed.Must(t, os.Symlink("../../../../etc", filepath.Join(a.Workspace, "up")))
	testbed.Must(t, syscall.Mkfifo(filepath.Join(a.Workspace, "fifo"), 0o600))
	testbed.Must(t, a.Mkdir(ctx, "dir/in"))
	_, err := a.Write(ctx, "file", strings.NewReader("x"))
	testbed.Must(t, err)
	read := func(path string) func() error {
		return func() error { _, _, err := a.Open(ctx, path, 0, 0); return err }
	}
	write := func(path string) func() error {
		return func() error { _, err := a.Write(ctx, path, strings.NewReader("new")); return err }
	}
	for name, c := range map[string]struct {
		do   func() error
		want farm.Code
	}{
		"read through a link":     {read("passwd"), farm.CodeInvalid},
		"read through a dir link": {read("etc/passwd"), farm.CodeInvalid},
		"read through ..":         {read("up/passwd"), farm.CodeInvalid},
		"read dotdot":             {read("../x"), farm.CodeInvalid},
		"read absolute":           {read("/etc/passwd"), farm.CodeInvalid},
		"read a pipe":             {read("fifo"), farm.CodeInvalid},
		"read a directory":        {read("dir"), farm.CodeInvalid},
		"read nothing":            {read("none"), farm.CodeNotFound},
		"read the workspace":      {read(""), farm.CodeInvalid},
		"read staging":            {read(".sandfarm-staging/x"), farm.CodeInvalid},
		"read under a file":       {read("file/x"), farm.CodeConflict},
		"read behind the end":     {func() error { _, _, err := a.Open(ctx, "file", 2, 0); return err }, farm.CodeInvalid},
		"write over a directory":  {write("dir"), farm.CodeConflict},
		"write under a file":      {write("file/x"), farm.CodeConflict},
		"write through a link":    {write("etc/new"), farm.CodeInvalid},
		"write a long name":       {write(strings.Repeat("n", 256)), farm.CodeInvalid},
		"list nothing":            {func() error { _, err := a.List(ctx, "none", agent.ListQuery{}); return err }, farm.CodeNotFound},
		"list through a link":     {func() error { _, err := a.List(ctx, "etc", agent.ListQuery{Recursive: true}); return err }, farm.CodeInvalid},
		"remove nothing":          {func() error { return a.Remove(ctx, "none") }, farm.CodeNotFound},
		"remove the workspace":    {func() error { return a.Remove(ctx, ".") }, farm.CodeInvalid},
		"move over a directory":   {func() error { return a.Move(ctx, "file", "dir") }, farm.CodeConflict},
		"move into itself":        {func() error { return a.Move(ctx, "dir", "dir/in/dir") }, farm.CodeInvalid},
		"move nothing":            {func() error { return a.Move(ctx, "none", "x") }, farm.CodeNotFound},
		"mkdir over a file":       {func() error { return a.Mkdir(ctx, "file") }, farm.CodeConflict},
		"mkdir through a link":    {func() error { return a.Mkdir(ctx, "etc/x") }, farm.CodeInvalid},
		"tar of a link":           {func() error { _, err := a.GetTar(ctx, "etc"); return err }, farm.CodeInvalid},
		"tar of a file":           {func() error { _, err := a.GetTar(ctx, "file"); return err }, farm.CodeInvalid},
	} {
		err := c.do()
		testbed.Check(t, farm.CodeOf(err) == c.want, "%s: %v (%s), want %s", name, err, farm.CodeOf(err), c.want)
	}
	raw, err := os.ReadFile(filepath.Join(a.Workspace, "file"))
	testbed.Check(t, err == nil && string(raw) == "x", "file = %q, %v", raw, err)
}

// Many files that come together are written as each alone would be, but all of them or none.
func TestPutFilesWritesAsWriteDoes(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	ctx := t.Context()
	outside := t.TempDir()
	testbed.Must(t, a.Mkdir(ctx, "dir"))
	for link, target := range map[string]string{"out": outside, "in": "dir", "none": "nothing"} {
		testbed.Must(t, os.Symlink(target, filepath.Join(a.Workspace, link)))
	}
	put := func(files ...tar.Header) ([]farm.FileEntry, error) {
		return a.PutFiles(ctx, bytes.NewReader(archive(t, files...)), len(files))
	}
	entries, err := put(file("b/new", "12345"), file("in/a", ""), file("none", "1"))
	testbed.Must(t, err)
	got := map[string]farm.FileEntry{}
	for _, e := range entries {
		got[e.Path] = e
	}
	for path, size := range map[string]int64{"b/new": 5, "in/a": 0, "none": 1} {
		want, err := a.Stat(ctx, path)
		if err != nil || want.Size != size || want.Mode != "0644" || got[path] != want || len(got) != 3 {
			t.Errorf("%s: %+v, %v; described as %+v", path, want, err, got[path])
		}
	}
	for path, want := range map[string]farm.Code{
		"dir": farm.CodeConflict, "in": farm.CodeConflict, "out/a": farm.CodeInvalid, "b/new/a": farm.CodeConflict, ".sandfarm-staging/a": farm.CodeInvalid,
	} {
		_, alone := a.Write(ctx, path, strings.NewReader("x"))
		_, err := put(file("first", "x"), file(path, "x"))
		testbed.Check(t, farm.CodeOf(err) == want && farm.CodeOf(alone) == want, "%s: %v, and alone %v; want %s", path, err, alone, want)
	}
	_, err = a.Stat(ctx, "first")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "a file of an upload that was refused: %v", err)
}

func TestInterruptedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	broken := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), errReader{})
	_, err := a.Write(t.Context(), "new/half", broken)
	testbed.Require(t, err != nil, "no error")
	waitEmpty(t, a.Workspace)
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// waitEmpty waits until a directory is empty: the agent may notice a broken upload a moment after its sender.
func waitEmpty(t *testing.T, dir string) {
	t.Helper()
	var left []fs.DirEntry
	for range 500 {
		var err error
		left, err = os.ReadDir(dir)
		testbed.Must(t, err)
		if len(left) == 0 {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatalf("left: %v", left)
}

// archive returns a tar of members.
func archive(t *testing.T, members ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range members {
		body := h.Uname // Uname holds the content in these tests: a header has no body
		h.Uname = ""
		h.Size = int64(len(body))
		testbed.Must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, body)
		testbed.Must(t, err)
	}
	testbed.Must(t, w.Close())
	return out.Bytes()
}

func file(name, body string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: body, Mode: 0o4644}
}

func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

func TestTarRoundTrip(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	ctx := t.Context()
	_, err := a.Write(ctx, "to/d/old", strings.NewReader("old"))
	testbed.Must(t, err)
	script := file("d/run", "#!")
	script.Mode = 0o6711
	testbed.Must(t, a.PutTar(ctx, "to", bytes.NewReader(archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o777}, tar.Header{Typeflag: tar.TypeDir, Name: "empty/", Mode: 0o700},
		file("./d/a", "A"), script, link("d/link", "../../to/d/a"), link("new/dir/link", "../../.."), link("top", "/workspace/to"),
		file("d/a", "AA"),
	))))
	for path, want := range map[string]string{
		"to/d/a": "file 0644", "to/d/run": "file 0755", "to/d/old": "file 0644", "to/empty": "dir 0755", "to/d/link": "symlink 0777", "to/new/dir/link": "symlink 0777",
	} {
		e, err := a.Stat(ctx, path)
		testbed.Check(t, err == nil && e.Type+" "+e.Mode == want, "%s = %+v, %v; want %s", path, e, err, want)
	}
	r, err := a.GetTar(ctx, "to")
	testbed.Must(t, err)
	defer func() { _ = r.Close() }()
	got := map[string]string{}
	for reader := tar.NewReader(r); ; {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testbed.Must(t, err)
		body, err := io.ReadAll(reader)
		testbed.Must(t, err)
		got[h.Name] = string(body)
	}
	want := map[string]string{"d/": "", "d/a": "AA", "d/old": "old", "d/run": "#!", "empty/": "", "new/": "", "new/dir/": ""}
	testbed.Diff(t, "tar", want, got)
}

// A directory that is missing behind a link is made where that leads, which may be further up than the link is.
func TestTarRefusesLinksOutBehindADanglingLink(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	testbed.Must(t, os.MkdirAll(filepath.Join(a.Workspace, "a/b"), 0o700))
	testbed.Must(t, os.Symlink("../../made", filepath.Join(a.Workspace, "a/b/dangling")))
	err := a.PutTar(t.Context(), "a/b/dangling/x", bytes.NewReader(archive(t, link("out", "../../.."))))
	testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "error = %v", err)
	testbed.Must(t, a.PutTar(t.Context(), "a/b/dangling/x", bytes.NewReader(archive(t, link("in", "..")))))
}

func TestTarRefusesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	good, deep := file("good", "fine"), strings.Repeat("d/", 130)
	long := strings.Repeat("n", 256)
	for name, c := range map[string]struct {
		body []byte
		code farm.Code
	}{
		"empty body":      {nil, farm.CodeInvalid},
		"garbage":         {bytes.Repeat([]byte("garbage!"), 1000), farm.CodeInvalid},
		"gzip":            {append([]byte{0x1f, 0x8b, 8}, make([]byte, 600)...), farm.CodeInvalid},
		"cut short":       {archive(t, good, file("cut", strings.Repeat("x", 4000)))[:3000], farm.CodeInvalid},
		"absolute":        {archive(t, good, file("/etc/x", "")), farm.CodeInvalid},
		"in workspace":    {archive(t, good, file("/workspace/x", "")), farm.CodeInvalid},
		"dotdot":          {archive(t, good, file("a/../../x", "")), farm.CodeInvalid},
		"long name":       {archive(t, good, file("a/"+long, "")), farm.CodeInvalid},
		"hard link":       {archive(t, good, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}), farm.CodeInvalid},
		"device":          {archive(t, good, tar.Header{Typeflag: tar.TypeChar, Name: "dev", Devmajor: 1, Devminor: 3}), farm.CodeInvalid},
		"pipe":            {archive(t, good, tar.Header{Typeflag: tar.TypeFifo, Name: "p"}), farm.CodeInvalid},
		"link out":        {archive(t, good, link("l", "..")), farm.CodeInvalid},
		"link absolute":   {archive(t, good, link("l", "/etc")), farm.CodeInvalid},
		"link up after":   {archive(t, good, link("p/q/a", "../.."), link("b", "p/q/a/..")), farm.CodeInvalid},
		"link in a link":  {archive(t, good, link("kept/top/a/b", "../../..")), farm.CodeInvalid},
		"link deep down":  {archive(t, good, link("kept/"+deep+"l", strings.Repeat("../", 132))), farm.CodeInvalid},
		"absolute up":     {archive(t, good, link("a", "/workspace/kept/../..")), farm.CodeInvalid},
		"through a link":  {archive(t, good, link("l", "in"), file("l/x", "")), farm.CodeInvalid},
		"staging":         {archive(t, good, file(".sandfarm-staging/x", "")), farm.CodeInvalid},
		"no name":         {archive(t, good, file(".", "x")), farm.CodeInvalid},
		"file over a dir": {archive(t, good, file("kept", "x")), farm.CodeConflict},
		"dir over a file": {archive(t, good, file("kept/file/x", "x")), farm.CodeConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := agenttest.StartPlain(t)
			_, err := a.Write(t.Context(), "kept/file", strings.NewReader("kept"))
			testbed.Must(t, err)
			testbed.Must(t, os.Symlink("..", filepath.Join(a.Workspace, "kept", "top")))
			testbed.Must(t, os.MkdirAll(filepath.Join(a.Workspace, "kept", deep), 0o700))
			err = a.PutTar(t.Context(), "", bytes.NewReader(c.body))
			testbed.Check(t, farm.CodeOf(err) == c.code, "error = %v (%s), want %s", err, farm.CodeOf(err), c.code)
			testbed.Must(t, os.RemoveAll(filepath.Join(a.Workspace, "kept")))
			waitEmpty(t, a.Workspace)
		})
	}
}
