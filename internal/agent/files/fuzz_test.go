package files_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// packed makes a tar of headers; regular files contain their own name.
func packed(headers ...tar.Header) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if w.WriteHeader(&h) != nil {
			continue
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = w.Write([]byte(h.Name))
		}
	}
	_ = w.Close()
	return out.Bytes()
}

// Archives come from callers. Nothing is written outside the workspace, whatever is in them, and one that is refused leaves nothing.
func FuzzPutTar(f *testing.F) {
	for _, seed := range [][]byte{
		nil, make([]byte, 1024), packed(tar.Header{Typeflag: tar.TypeReg, Name: "a/b.txt", Mode: 0o644}),
		packed(tar.Header{Typeflag: tar.TypeReg, Name: "../outside"}), packed(tar.Header{Typeflag: tar.TypeReg, Name: "/outside"}),
		packed(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "l/outside"}),
		packed(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc/passwd"}), packed(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside"}),
		packed(tar.Header{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1, Devminor: 5}), packed(tar.Header{Typeflag: tar.TypeFifo, Name: "p"}),
		packed(tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o7777}, tar.Header{Typeflag: tar.TypeReg, Name: "d"}),
		packed(tar.Header{Typeflag: tar.TypeReg, Name: "x"})[:700], packed(tar.Header{Typeflag: tar.TypeReg, Name: ".sandfarm-staging/x"}),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1<<16 {
			return
		}
		top := t.TempDir()
		work := filepath.Join(top, "deep", "work")
		if err := os.MkdirAll(work, 0o700); err != nil {
			t.Fatal(err)
		}
		w, err := files.Open(work)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = w.Close() }()
		err = w.PutTar("", bytes.NewReader(in))
		if err != nil && farm.CodeOf(err) == farm.CodeInternal {
			t.Errorf("the error has no code: %v", err)
		}
		for _, dir := range []string{top, filepath.Join(top, "deep")} {
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("%s has %d entries, %v", dir, len(entries), err)
			}
		}
		if _, err := w.List("", agent.ListQuery{Recursive: true}); err != nil {
			t.Errorf("the workspace cannot be listed: %v", err)
		}
		if entries, listErr := os.ReadDir(work); err != nil && (listErr != nil || len(entries) > 0) {
			t.Errorf("a refused archive (%v) left %v, %v", err, entries, listErr)
		}
		if err == nil {
			if err := w.WriteTar("", &bytes.Buffer{}); err != nil {
				t.Errorf("the workspace cannot be packed: %v", err)
			}
		}
	})
}
