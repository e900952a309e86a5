package compat

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Bounds of a tar. Compressed, each byte of a request may unpack to a thousand.
const (
	// maxMembers is far above the members of a project that fits a request.
	maxMembers = 100_000
	// maxUnpacked bounds the bytes that a tar unpacks to, and those of its files together: holes of sparse files are no bytes of the tar.
	maxUnpacked = 512 << 20
	// maxLinked is the largest file that links may copy: its content is kept in memory.
	maxLinked = 16 << 20
	// maxLinkBytes bounds what links take in memory until their targets are found: their names, those of the targets, and linkEntry each.
	maxLinkBytes = 1 << 20
	linkEntry    = 64
	// blockBytes is what a member takes in a tar beside its content, at least.
	blockBytes = 512
)

// linkNames are the names of links, by their target.
type linkNames struct {
	of    map[string][]string
	bytes int
}

func (l *linkNames) add(name, target string) error {
	if l.bytes += len(name) + len(target) + linkEntry; l.bytes > maxLinkBytes {
		return farm.Errorf(farm.CodeTooLarge, "The tar holds too many links: their names may have %d bytes together.", maxLinkBytes)
	}
	l.of[target] = append(l.of[target], name)
	return nil
}

// archive repacks the files and directories of a tar. A link to a file of the tar becomes a copy of it; other links and devices are
// skipped.
func (w *packer) archive(ctx context.Context, raw []byte) error {
	links := linkNames{of: map[string][]string{}}
	err := tarMembers(ctx, raw, func(member *tar.Header, content io.Reader) error {
		name, mode := strings.TrimPrefix(member.Name, "./"), member.FileInfo().Mode()
		switch {
		case neverSent(name):
			return nil
		case member.Typeflag == tar.TypeLink:
			return links.add(name, path.Clean(member.Linkname)) //nolint:gosec // it is only looked for among the names of the tar
		case member.Typeflag == tar.TypeSymlink && !path.IsAbs(member.Linkname):
			return links.add(name, path.Join(path.Dir(name), member.Linkname)) //nolint:gosec // it is only looked for among the names of the tar
		case !mode.IsDir() && !mode.IsRegular():
			w.skip(name)
			return nil
		}
		return w.add(name, mode, member.Size, content)
	})
	if err != nil || len(links.of) == 0 {
		return err
	}
	return w.copies(ctx, raw, links.of)
}

// copies packs the files that links lead to under the names of the links, by their target.
func (w *packer) copies(ctx context.Context, raw []byte, links map[string][]string) error {
	var charged int64
	err := tarMembers(ctx, raw, func(member *tar.Header, content io.Reader) error {
		names := links[path.Clean(member.Name)]
		if member.Typeflag != tar.TypeReg || len(names) == 0 || member.Size > maxLinked {
			return nil
		}
		delete(links, path.Clean(member.Name))
		if err := budget.Charge(ctx, max(0, member.Size-charged)); err != nil { // one at a time is in memory
			return err
		}
		charged = max(charged, member.Size)
		text := make([]byte, member.Size)
		if _, err := io.ReadFull(content, text); err != nil {
			return fmt.Errorf("read %s: %w", member.Name, err)
		}
		for _, name := range names {
			if err := w.add(name, member.FileInfo().Mode(), member.Size, bytes.NewReader(text)); err != nil {
				return err
			}
		}
		return nil
	})
	for _, target := range slices.Sorted(maps.Keys(links)) {
		for _, name := range links[target] {
			w.skip(name)
		}
	}
	return err
}

// tarMembers yields each member of a tar, which may be compressed by gzip. It refuses a tar beyond maxMembers or maxUnpacked, and names beyond
// farm.MaxPathBytes. What it unpacks beyond budget.SmallBytes it unpacks on a core of the tenant of ctx, which it does not hold during each.
func tarMembers(ctx context.Context, raw []byte, each func(*tar.Header, io.Reader) error) error {
	from := &io.LimitedReader{R: bufio.NewReader(bytes.NewReader(raw)), N: maxUnpacked + 1}
	broken := func() error {
		if from.N <= 0 {
			return errUnpacked()
		}
		return farm.Invalidf("content_base64 is not a tar, or it is truncated.")
	}
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(from.R)
		if err != nil {
			return broken()
		}
		from.R = unzipped
	}
	all, members, size, last := tar.NewReader(from), 0, int64(0), int64(0)
	for {
		leave, err := budget.Core(ctx, int(last)+blockBytes) // which skips the rest of the member before
		if err != nil {
			return err
		}
		member, err := all.Next()
		leave()
		if errors.Is(err, io.EOF) && len(raw) > 0 && from.N > 0 {
			return nil
		}
		if err != nil {
			return broken()
		}
		members++
		last = min(member.Size, maxUnpacked+1)
		size += last
		switch long := max(len(member.Name), len(member.Linkname)); {
		case members > maxMembers:
			return farm.Errorf(farm.CodeTooLarge, "The tar holds more than %d members.", maxMembers)
		case size > maxUnpacked:
			return errUnpacked()
		case long > farm.MaxPathBytes:
			return farm.Invalidf("The tar holds a name of %d bytes; at most %d are allowed.", long, farm.MaxPathBytes)
		}
		// Each name may be a part of a header of a MiB, which would stay in memory with it.
		member.Name, member.Linkname = strings.Clone(member.Name), strings.Clone(member.Linkname)
		if err := each(member, onCore{all, ctx, int(last)}); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return broken()
			}
			return err
		}
	}
}

// onCore reads on a core of its tenant's (budget.Core): what it reads is made of bytes that are there.
type onCore struct {
	io.Reader
	ctx  context.Context
	size int // of the member
}

// Read reads a piece.
func (o onCore) Read(b []byte) (int, error) {
	leave, err := budget.Core(o.ctx, min(len(b), o.size))
	if err != nil {
		return 0, err
	}
	defer leave()
	return o.Reader.Read(b)
}

func errUnpacked() error {
	return farm.Errorf(farm.CodeTooLarge, "The tar unpacks to more than %d bytes.", maxUnpacked)
}

// folder packs a directory of this machine. A link to a file of the directory becomes a copy of it; other links are not followed,
// because they may lead anywhere.
func (w *packer) folder(files fs.FS) error {
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		from := name
		switch {
		case err != nil:
			return mcp.LocalError("local_src_dir", name, err)
		case name == ".":
			return nil
		case farm.HiddenPath(name), neverSent(name):
			if !nobodySends(entry.Name()) {
				w.skip(name)
			}
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.Type()&fs.ModeSymlink != 0:
			if from = linked(files, name); from == "" {
				w.skip(name)
				return nil
			}
		case !entry.IsDir() && !entry.Type().IsRegular():
			w.skip(name)
			return nil
		}
		info, err := fs.Lstat(files, from)
		if err != nil {
			return mcp.LocalError("local_src_dir", name, err)
		}
		if info.IsDir() {
			if _, err := fs.Stat(files, path.Join(name, "pyvenv.cfg")); err == nil {
				return fs.SkipDir // a virtual environment
			}
			return w.add(name, fs.ModeDir, 0, nil)
		}
		file, err := files.Open(from)
		if err != nil {
			return mcp.LocalError("local_src_dir", name, err)
		}
		defer func() { _ = file.Close() }() // it was only read
		// If the file grows meanwhile, only its size at the start is read.
		return w.add(name, info.Mode(), info.Size(), io.LimitReader(file, info.Size()))
	})
}

// linked returns the file of the same directory that a link leads to, or "" if it leads elsewhere or to another link.
func linked(files fs.FS, name string) string {
	target, err := fs.ReadLink(files, name)
	if err != nil || path.IsAbs(target) {
		return ""
	}
	to := path.Join(path.Dir(name), target)
	if !fs.ValidPath(to) || farm.HiddenPath(to) || neverSent(to) {
		return ""
	}
	if info, err := fs.Lstat(files, to); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return to
}

// neverSent reports whether an element of a path is in nobodySends.
func neverSent(name string) bool {
	for element := range strings.SplitSeq(strings.TrimRight(name, "/"), "/") { // the name may be as long as a request
		if nobodySends(element) {
			return true
		}
	}
	return false
}

// maxSkipped is how many skipped names are kept, and listed in an answer.
const maxSkipped = 50

func (w *packer) skip(name string) {
	switch {
	case neverSent(name):
	case len(w.left) < maxSkipped:
		w.left = append(w.left, name)
	default:
		w.more++
	}
}

// skipped lists the skipped names.
func (w *packer) skipped() []string {
	slices.Sort(w.left)
	if w.more > 0 {
		return append(w.left, fmt.Sprintf("and %d more", w.more))
	}
	return w.left
}
