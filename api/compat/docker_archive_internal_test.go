package compat

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A tar of half a GiB of zeros takes a core for a quarter of a second. It has one of its tenant's, but not while what it holds is sent.
func TestTarsAreUnpackedOnACore(t *testing.T) {
	t.Parallel()
	var raw bytes.Buffer
	packed := gzip.NewWriter(&raw)
	all := tar.NewWriter(packed)
	for _, size := range []int64{10, 10 * budget.SmallBytes, 10} {
		if err := all.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: size}); err != nil {
			t.Fatal(err)
		}
		_, _ = all.Write(make([]byte, size))
	}
	_, _ = all.Close(), packed.Close()

	memory := budget.New(0)
	whole := testbed.FreeCores(t, memory, "acme")
	ctx := testbed.Abandoned(t, memory, "acme")
	for _, read := range []bool{true, false} {
		members := 0
		each := func(_ *tar.Header, content io.Reader) error {
			members++
			if n := testbed.FreeCores(t, memory, "acme"); n != whole {
				t.Errorf("%d of %d cores are free while member %d is sent", n, whole, members)
			}
			if !read {
				return nil
			}
			_, err := io.Copy(io.Discard, content)
			return err
		}
		if err := tarMembers(ctx, raw.Bytes(), each); err != nil || members != 3 {
			t.Errorf("%d members, want 3: %v", members, err)
		}
		members = 0
		err := tarMembers(testbed.WithoutCore(t, budget.New(0), "acme"), raw.Bytes(), func(_ *tar.Header, content io.Reader) error {
			members++
			if !read {
				return nil
			}
			_, err := io.Copy(io.Discard, content)
			return err
		})
		if members != 2 || !errors.Is(err, context.Canceled) {
			t.Errorf("without a core there are %d members, want 2: %v", members, err)
		}
	}
}

func TestHasComparesVersions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status, version, wanted string
		has                     bool
	}{
		{"installed", "2.5.5", "numpy", true},
		{"installed", "2.5.5", "numpy>=1", true},
		{"installed", "2.5.5", "numpy==2.5.5", true},
		{"installed", "2.5", "numpy == 2.5.0", true},
		{"installed", "2.5.5", "numpy==1.0", false},
		{"installed", "2.5.5", "numpy==2.*", true},
		{"installed", "2.5.5", "numpy!=1.0", true},
		{"installed", "2.1.0+cpu", "torch==2.1.0", true},
		{"installed", "2.1.0+cpu", "torch==2.1.0+cu121", false},
		{"installed", "", "numpy==1.0", true}, // the installed version is unknown
		{"failed", "0.9.0", "tabulate", true},
		{"failed", "0.9.0", "tabulate==99999", false},
		{"failed", "", "tabulate", false},
		{"installing", "", "tabulate", false},
		{"not_found", "", "tabulate", false},
	} {
		testbed.Diff(t, fmt.Sprintf("%+v", test), test.has, hasPackage(wire.Package{Status: test.status, Version: test.version}, test.wanted))
	}
}

// The name of a file may be as long as a request: a list of its elements took sixteen bytes for each.
func TestElementsOfALongNameAreNotListed(t *testing.T) { // not parallel: it counts what the process allocates
	long := strings.Repeat("a/", 1<<20)
	if n := testing.AllocsPerRun(1, func() {
		if neverSent(long) || !neverSent(long+"/.git/") {
			t.Error("the wrong names are left out")
		}
	}); n > 1 { // the second name
		t.Errorf("%g allocations", n)
	}
}

// Colours are taken out of a large stream on one of the cores of its tenant, of which it has none left here.
func TestColoursOfLargeStreamsAreRemovedOnACore(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	const colour = "\x1b[31m"
	for more, want := range map[int]bool{-1: true, 0: true, 1: false} {
		text := strings.Repeat("x", budget.SmallBytes-len(colour)+more)
		got, err := streamList(testbed.WithoutCore(t, memory, "acme"), colour+text)
		if (err == nil) != want || want && (len(got) != 1 || got[0] != text) {
			t.Errorf("%d bytes, without a core: %d lines, %v", len(colour+text), len(got), err)
		}
	}
}
