package compat_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestFilesAreInTheWorkspace(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	base, _ := b.made["workspace_path"].(string)
	for _, c := range []struct {
		tool string
		args map[string]any
		want string
	}{
		{"write_file_sandbox", map[string]any{"file_name": "a.txt", "file_contents": "1"}, "a.txt"},
		{"write_file_sandbox", map[string]any{"file_name": "a.txt", "file_contents": "2", "dest_dir": "/etc/in ner/"}, "etc/in ner/a.txt"},
		{"write_file_sandbox", map[string]any{"file_name": "/b/c.txt", "file_contents": "", "dest_dir": nil}, "b/c.txt"},
		{"copy_file", map[string]any{"local_src_file": `C:\me\in put.csv`, "content": "x"}, "in put.csv"},
		{"copy_file", map[string]any{"local_src_file": "x", "dest_path": "/d/y.bin", "content_base64": "AP8="}, "d/y.bin"},
		{"write_file_sandbox", map[string]any{"file_name": "in/../n.txt", "file_contents": "3", "dest_dir": base + "/told"}, "told/n.txt"},
		{"write_file_sandbox", map[string]any{"file_name": base + "/told.txt", "file_contents": "4"}, "told.txt"},
		{"copy_file", map[string]any{"local_src_file": "/me/f.txt", "dest_path": "dir/", "content": "5"}, "dir/f.txt"},
		{"copy_file", map[string]any{"local_src_file": "e", "dest_path": "$(touch x)/e", "content": ""}, "$(touch x)/e"},
	} {
		if out := b.call(c.tool, c.args); out["success"] != true || out["file_path"] != base+"/"+c.want {
			t.Errorf("%s %v: %v", c.tool, c.args, out)
		}
	}
	testbed.Diff(t, "", map[string]string{
		"a.txt": "1", "etc/in ner/a.txt": "2", "b/c.txt": "", "in put.csv": "x", "d/y.bin": "\x00\xff", "$(touch x)/e": "",
		"told/n.txt": "3", "told.txt": "4", "dir/f.txt": "5",
	}, b.farm.Written())
	b.refused("write_file_sandbox", map[string]any{"file_name": "../x", "file_contents": ""}, "file_name")
	b.refused("write_file_sandbox", map[string]any{"file_name": "x", "file_contents": "", "dest_dir": "a/../../b"}, "dest_dir")
	b.refused("write_file_sandbox", map[string]any{"file_name": "x/", "file_contents": ""}, "file_name")
	b.refused("copy_file", map[string]any{"local_src_file": "x", "content_base64": "!"}, "base64")
	b.refused("copy_file", map[string]any{"local_src_file": "x", "content_base64": "", "content": ""}, "not both")
}

// TestAnyFileOfTheSandboxIsCopiedOut: the original accepts any absolute path.
func TestAnyFileOfTheSandboxIsCopiedOut(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	base, _ := b.made["workspace_path"].(string)
	id, _ := b.made["container_id"].(string)
	b.farm.CommandFunc = func(ctx context.Context, r wire.CommandRequest) wire.Job {
		if r.Env["FROM"] == "/tmp/a b.txt" {
			if _, err := b.farm.WriteFile(ctx, id, r.Env["TO"], strings.NewReader("tmp"), 3); err != nil {
				t.Error(err)
			}
			return completed(&wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{}}}})
		}
		return completed(&wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{ExitCode: 1}}}})
	}
	b.call("write_file_sandbox", map[string]any{"file_name": "in.txt", "file_contents": "1"})
	for path, size := range map[string]float64{"in.txt": 1, "x/../in.txt": 1, base + "/in.txt": 1, "/app/in.txt": 1, "/workspace/in.txt": 1, "/tmp/a b.txt": 3} {
		if out := b.call("copy_file_from_sandbox", map[string]any{"container_src_path": path}); out["success"] != true || out["file_size"] != size || out["url"] == "" {
			t.Errorf("%s: %v", path, out)
		}
	}
	testbed.Diff(t, "a copy stays in the workspace", map[string]string{"in.txt": "1"}, b.farm.Written())
	for _, path := range []string{"/no/such", "/app/workspaces/11111111-2222-3333-4444-555555555555/../../../x", "../x", ""} {
		b.refused("copy_file_from_sandbox", map[string]any{"container_src_path": path}, "container_src_path")
	}
	for _, path := range []string{"nope", "/app/nope", base + "/nope", "/workspace/nope"} {
		b.refused("copy_file_from_sandbox", map[string]any{"container_src_path": path}, `"nope"`)
	}
}

// TestFileWithoutAWorkspaceHasTheReportedPath: /app is not the directory of a persistent sandbox.
func TestFileWithoutAWorkspaceHasTheReportedPath(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	args := map[string]any{"container_id": b.made["container_id"]}
	delete(b.made, "workspace_id")
	for tool, more := range map[string]map[string]any{
		"write_file_sandbox": {"file_name": "d/f.txt", "file_contents": ""}, "copy_project": {"local_src_dir": "d", "content": map[string]any{}},
	} {
		for name, value := range args {
			more[name] = value
		}
		out := b.call(tool, more)
		b.farm.mu.Lock()
		last := b.farm.commands[len(b.farm.commands)-1]
		b.farm.mu.Unlock()
		if out["success"] != true || last.Env["NAME"] != "d" || last.Command == nil || !strings.Contains(*last.Command, "ln -s") {
			t.Errorf("%s: %v, %+v", tool, out, last)
		}
	}
}

func TestPathsOfTheServersMachineAreRefused(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	for _, path := range []string{"/etc/passwd", "/no/such/file"} {
		b.refused("copy_file", map[string]any{"local_src_file": path}, "content_base64", "which this server cannot read")
		b.refused("copy_project", map[string]any{"local_src_dir": path}, "content_base64", "which this server cannot read")
		b.refused("copy_file_from_sandbox", map[string]any{"container_src_path": "x", "local_dest_path": path}, "local_dest_path", "url")
	}
}

func packedTar(t *testing.T, zipped bool, headers ...tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	var into io.Writer = &out
	zip := gzip.NewWriter(&out)
	if zipped {
		into = zip
	}
	w := tar.NewWriter(into)
	for _, h := range headers {
		h.Size = 0
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		testbed.Must(t, w.WriteHeader(&h))
		if h.Size > 0 {
			_, _ = w.Write([]byte("x"))
		}
	}
	testbed.Must(t, w.Close())
	if zipped {
		_ = zip.Close()
	}
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

func TestProjectsKeepTheirShape(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	base, _ := b.made["workspace_path"].(string)
	tarred := []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "./run.sh", Typeflag: tar.TypeReg, Mode: 0o700},
		{Name: "a/b.txt", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "empty/", Typeflag: tar.TypeDir, Mode: 0o777},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		{Name: "a/soft", Typeflag: tar.TypeSymlink, Linkname: "../run.sh"},
		{Name: "a/hard", Typeflag: tar.TypeLink, Linkname: "./a/b.txt"},
		{Name: "a/up", Typeflag: tar.TypeSymlink, Linkname: "../../b.txt"},
		{Name: "pipe", Typeflag: tar.TypeFifo},
		{Name: ".git/config", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "a/__pycache__/b.pyc", Typeflag: tar.TypeReg, Mode: 0o644},
	}
	fromTar := []string{". p/ 755 ", ". p/ 755 ", ". p/run.sh 755 x", ". p/a/b.txt 644 x", ". p/empty/ 755 ", ". p/a/soft 755 x", ". p/a/hard 644 x"}
	for name, c := range map[string]struct {
		args map[string]any
		want []string
	}{
		"Texts": {
			map[string]any{"local_src_dir": "/me/my p/", "dest_dir": "/w", "content": map[string]any{"m.py": "1", "x.sh": "#!/bin/sh", "e/f/": "", "node_modules/a.js": "x", "venv/x": "x"}},
			[]string{"w my p/ 755 ", "w my p/e/f/ 755 ", "w my p/m.py 644 1", "w my p/x.sh 755 #!/bin/sh"},
		},
		"NoMembers": {map[string]any{"local_src_dir": "p", "content_base64": packedTar(t, true)}, []string{". p/ 755 "}},
		"Nothing":   {map[string]any{"local_src_dir": "p", "content": map[string]any{}}, []string{". p/ 755 "}},
		"Tar":       {map[string]any{"local_src_dir": `C:\p`, "content_base64": packedTar(t, false, tarred...)}, fromTar},
		"Gzip":      {map[string]any{"local_src_dir": "p", "content_base64": packedTar(t, true, tarred...)}, fromTar},
	} {
		out := b.call("copy_project", c.args)
		dest, _ := c.args["dest_dir"].(string)
		if diff := cmp.Diff(c.want, b.farm.members); diff != "" || out["success"] != true || out["dest_dir"] != base+dest {
			t.Errorf("%s: %v %s", name, out, diff)
		}
		if skipped, _ := out["skipped"].([]any); len(c.want) == len(fromTar) && fmt.Sprint(skipped) != "[a/up link pipe]" {
			t.Errorf("%s: skipped %v", name, skipped)
		}
	}
	for name, args := range map[string]map[string]any{
		"Up":       {"local_src_dir": "p", "content": map[string]any{"../x": ""}},
		"Absolute": {"local_src_dir": "p", "content": map[string]any{"/tmp/x": ""}},
		"Number":   {"local_src_dir": "p", "content": map[string]any{"x": 1.0}},
		"NoName":   {"local_src_dir": "/", "content": map[string]any{"x": ""}},
		"NoTar":    {"local_src_dir": "p", "content_base64": base64.StdEncoding.EncodeToString([]byte("no tar"))},
		"TarUp":    {"local_src_dir": "p", "content_base64": packedTar(t, true, tar.Header{Name: "a/../../x", Typeflag: tar.TypeReg})},
		"DestUp":   {"local_src_dir": "p", "dest_dir": "..", "content": map[string]any{"x": ""}},
		"TarAlone": {"local_src_dir": "p", "content_base64": packedTar(t, false, tar.Header{Name: "/etc/x", Typeflag: tar.TypeReg})},
	} {
		if out := b.call("copy_project", args); out["success"] != false {
			t.Errorf("%s: %v", name, out)
		}
	}
	whole := packedTar(t, true, tarred...)
	b.refused("copy_project", map[string]any{"local_src_dir": "p", "content_base64": whole[:len(whole)/2/4*4]}, "tar")
}

// dockerLocal is the machine of the caller.
type dockerLocal struct{ fstest.MapFS }

func (l dockerLocal) Open(string) (io.ReadCloser, int64, error) {
	return nil, 0, farm.Invalidf("there is no such file")
}

func (l dockerLocal) Create(string) (io.WriteCloser, error) {
	return nil, farm.Invalidf("it lies outside")
}

func (l dockerLocal) Folder(path string) (*mcp.LocalFolder, error) {
	if path != "proj" {
		return nil, farm.Invalidf("there is no such file")
	}
	return &mcp.LocalFolder{Name: "proj", Files: l.MapFS, Close: func() error { return nil }}, nil
}

func TestTheCallersDirectoryIsCopied(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	b.env.Local = dockerLocal{fstest.MapFS{
		"run.sh": {Data: []byte("x"), Mode: 0o744}, "a/b.txt": {Data: []byte("y")}, "a/empty": {Mode: fs.ModeDir}, ".env": {Data: []byte("secret")},
		".git/config": {}, "__pycache__/x.pyc": {}, "py/pyvenv.cfg": {}, "py/lib.py": {}, "link": {Mode: fs.ModeSymlink, Data: []byte("/etc/passwd")},
		"a/soft": {Mode: fs.ModeSymlink, Data: []byte("../run.sh")}, "a/secret": {Mode: fs.ModeSymlink, Data: []byte("../.env")}, "a/dir": {Mode: fs.ModeSymlink, Data: []byte("empty")},
	}}
	out := b.call("copy_project", map[string]any{"local_src_dir": "proj"})
	want := []string{". proj/ 755 ", ". proj/a/ 755 ", ". proj/a/b.txt 644 y", ". proj/a/empty/ 755 ", ". proj/a/soft 755 x", ". proj/run.sh 755 x"}
	if diff := cmp.Diff(want, b.farm.members); diff != "" || out["files"] != 3.0 || fmt.Sprint(out["skipped"]) != "[.env a/dir a/secret link]" {
		t.Errorf("%v %s", out, diff)
	}
	b.refused("copy_project", map[string]any{"local_src_dir": "other"}, "other", "there is no such file")
	b.refused("copy_file", map[string]any{"local_src_file": "x"}, "there is no such file")
}

// repeatedTar is a tar, compressed by gzip, of one piece n times and then the members of end.
func repeatedTar(t *testing.T, piece []byte, n int, end ...tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	testbed.Must(t, err)
	for range n {
		_, err = zip.Write(piece)
		testbed.Must(t, err)
	}
	last := tar.NewWriter(zip)
	for _, h := range end {
		testbed.Must(t, last.WriteHeader(&h))
	}
	testbed.Must(t, last.Close())
	testbed.Must(t, zip.Close())
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

// member is the header of a member as a tar has it.
func member(t *testing.T, h tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	testbed.Must(t, tar.NewWriter(&out).WriteHeader(&h))
	return out.Bytes()
}

// hole is a sparse file without data, as GNU tar of old writes it.
func hole(t *testing.T, name string, size int64) []byte {
	t.Helper()
	block := member(t, tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Format: tar.FormatGNU})
	block[156] = tar.TypeGNUSparse
	copy(block[386:], fmt.Sprintf("%011o\x00%011o\x00", size, 0)) // one piece of no bytes, at the end
	copy(block[483:], fmt.Sprintf("%011o\x00", size))
	copy(block[148:], "        ")
	sum := 0
	for _, b := range block {
		sum += int(b)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	return block
}

// A request of a few KB that repeats a member with a name of 900,000 bytes once took a GiB, and had an answer of 90 MB.
func TestATarOfAFewKBFillsNoMemory(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	for n, ok := range map[int]bool{farm.MaxPathBytes - 1: true, farm.MaxPathBytes: true, farm.MaxPathBytes + 1: false, 900_000: false} {
		name := strings.Repeat("a", n)
		for what, h := range map[string]tar.Header{
			"Name": {Name: name, Typeflag: tar.TypeFifo}, "NeverSent": {Name: ".git/" + name[5:], Typeflag: tar.TypeFifo},
			"Symlink": {Name: "l", Linkname: name, Typeflag: tar.TypeSymlink}, "Hardlink": {Name: "l", Linkname: name, Typeflag: tar.TypeLink},
		} {
			h.Format = tar.FormatGNU
			args := map[string]any{"local_src_dir": "p", "content_base64": repeatedTar(t, member(t, h), 2)}
			if !ok {
				b.refused("copy_project", args, fmt.Sprintf("a name of %d bytes", n))
			} else if out := b.call("copy_project", args); out["success"] != true {
				t.Errorf("%s of %d bytes: %v", what, n, out)
			}
		}
	}
}

func TestSkippedNamesAreBounded(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	for n, last := range map[int]string{49: "a", 50: "a", 51: "and 1 more", 2000: "and 1950 more"} {
		out := b.call("copy_project", map[string]any{"local_src_dir": "p", "content_base64": repeatedTar(t, member(t, tar.Header{Name: "a", Typeflag: tar.TypeFifo}), n)})
		if skipped, _ := out["skipped"].([]any); len(skipped) != min(n, 51) || skipped[len(skipped)-1] != last {
			t.Errorf("%d: %v", n, out)
		}
	}
}

func TestMembersOfATarAreBounded(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	unsent := member(t, tar.Header{Name: ".git/x", Typeflag: tar.TypeReg})
	for n, ok := range map[int]bool{99_999: true, 100_000: true, 100_001: false} {
		args := map[string]any{"local_src_dir": "p", "content_base64": repeatedTar(t, unsent, n)}
		if !ok {
			b.refused("copy_project", args, "more than 100000 members")
		} else if out := b.call("copy_project", args); out["success"] != true {
			t.Errorf("%d members: %v", n, out)
		}
	}
}

func TestBytesOfATarAreBounded(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	const words = "unpacks to more than 536870912 bytes"
	for size, ok := range map[int64]bool{512<<20 - 1: true, 512 << 20: true, 512<<20 + 1: false} {
		args := map[string]any{"local_src_dir": "p", "content_base64": repeatedTar(t, hole(t, ".git/x", size), 1)}
		if !ok {
			b.refused("copy_project", args, words)
		} else if out := b.call("copy_project", args); out["success"] != true {
			t.Errorf("%d bytes: %v", size, out)
		}
	}
	b.refused("copy_project", map[string]any{"local_src_dir": "p", "content_base64": repeatedTar(t, hole(t, ".git/x", 256<<20), 3)}, words)
	// One member that never comes: names for it follow one another, each of almost a MiB.
	name := member(t, tar.Header{Name: strings.Repeat("a", 1<<20-1), Typeflag: tar.TypeReg, Format: tar.FormatGNU})
	b.refused("copy_project", map[string]any{"local_src_dir": "p", "content_base64": repeatedTar(t, name[:len(name)-512], 512)}, words)
}

func TestLinksOfATarAreBounded(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	link := func(target string) []byte {
		return member(t, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: target})
	}
	for last, ok := range map[int]bool{62: true, 63: true, 64: false} { // with the name and what an entry takes, 1 << 7 at 63
		piece := link(strings.Repeat("t", 63))
		raw := repeatedTar(t, piece, 1<<13-1, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: strings.Repeat("u", last)})
		args := map[string]any{"local_src_dir": "p", "content_base64": raw}
		if !ok {
			b.refused("copy_project", args, "too many links")
		} else if out := b.call("copy_project", args); out["success"] != true {
			t.Errorf("%d: %v", last, out)
		}
	}
	unsent := repeatedTar(t, member(t, tar.Header{Name: "node_modules/.bin/l", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("t", 90)}), 20_000)
	if out := b.call("copy_project", map[string]any{"local_src_dir": "p", "content_base64": unsent}); out["success"] != true || out["skipped"] != nil {
		t.Errorf("links that nobody sends: %v", out)
	}
}

func TestLinkedFilesAreBounded(t *testing.T) {
	t.Parallel()
	b := setupDocker(t)
	for size, skipped := range map[int64]bool{16<<20 - 1: false, 16 << 20: false, 16<<20 + 1: true} {
		file := append(member(t, tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: size}), make([]byte, (size+511)/512*512)...)
		raw := repeatedTar(t, file, 1, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "f"})
		out := b.call("copy_project", map[string]any{"local_src_dir": "p", "content_base64": raw})
		if out["success"] != true || (fmt.Sprint(out["skipped"]) == "[l]") != skipped {
			t.Errorf("%d bytes: %v", size, out)
		}
	}
}
