package dockersandbox_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func packed(t *testing.T, zipped bool, headers ...tar.Header) string {
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
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = w.Write([]byte("x"))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if zipped {
		_ = zip.Close()
	}
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

func TestProjectsKeepTheirShape(t *testing.T) {
	t.Parallel()
	b := setup(t)
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
		"NoMembers": {map[string]any{"local_src_dir": "p", "content_base64": packed(t, true)}, []string{". p/ 755 "}},
		"Nothing":   {map[string]any{"local_src_dir": "p", "content": map[string]any{}}, []string{". p/ 755 "}},
		"Tar":       {map[string]any{"local_src_dir": `C:\p`, "content_base64": packed(t, false, tarred...)}, fromTar},
		"Gzip":      {map[string]any{"local_src_dir": "p", "content_base64": packed(t, true, tarred...)}, fromTar},
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
		"TarUp":    {"local_src_dir": "p", "content_base64": packed(t, true, tar.Header{Name: "a/../../x", Typeflag: tar.TypeReg})},
		"DestUp":   {"local_src_dir": "p", "dest_dir": "..", "content": map[string]any{"x": ""}},
		"TarAlone": {"local_src_dir": "p", "content_base64": packed(t, false, tar.Header{Name: "/etc/x", Typeflag: tar.TypeReg})},
	} {
		if out := b.call("copy_project", args); out["success"] != false {
			t.Errorf("%s: %v", name, out)
		}
	}
	whole := packed(t, true, tarred...)
	b.refused("copy_project", map[string]any{"local_src_dir": "p", "content_base64": whole[:len(whole)/2/4*4]}, "tar")
}

// localFiles is the machine of the caller.
type localFiles struct{ fstest.MapFS }

func (l localFiles) Open(string) (io.ReadCloser, int64, error) {
	return nil, 0, farm.Invalidf("there is no such file")
}

func (l localFiles) Create(string) (io.WriteCloser, error) {
	return nil, farm.Invalidf("it lies outside")
}

func (l localFiles) Folder(path string) (*mcp.LocalFolder, error) {
	if path != "proj" {
		return nil, farm.Invalidf("there is no such file")
	}
	return &mcp.LocalFolder{Name: "proj", Files: l.MapFS, Close: func() error { return nil }}, nil
}

func TestTheCallersDirectoryIsCopied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.env.Local = localFiles{fstest.MapFS{
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
