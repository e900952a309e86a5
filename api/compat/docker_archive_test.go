package compat_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// repeatedTar is a tar, compressed by gzip, of one piece n times and then the members of end.
func repeatedTar(t *testing.T, piece []byte, n int, end ...tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if _, err := zip.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	last := tar.NewWriter(zip)
	for _, h := range end {
		if err := last.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

// member is the header of a member as a tar has it.
func member(t *testing.T, h tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
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
