package compat

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxLinked is the largest file of a tar that links may copy: its content is kept in memory.
const maxLinked = 16 << 20

// archive repacks the files and directories of a tar. A link to a file of the tar becomes a copy of it; other links and devices are
// skipped.
func (w *packer) archive(raw []byte) error {
	links := map[string][]string{} // names of links, by their target
	err := tarMembers(raw, func(member *tar.Header, content io.Reader) error {
		name, mode := strings.TrimPrefix(member.Name, "./"), member.FileInfo().Mode()
		switch {
		case member.Typeflag == tar.TypeLink:
			to := path.Clean(member.Linkname) //nolint:gosec // it is only looked for among the names of the tar
			links[to] = append(links[to], name)
			return nil
		case member.Typeflag == tar.TypeSymlink && !path.IsAbs(member.Linkname):
			to := path.Join(path.Dir(name), member.Linkname) //nolint:gosec // it is only looked for among the names of the tar
			links[to] = append(links[to], name)
			return nil
		case !mode.IsDir() && !mode.IsRegular():
			w.skip(name)
			return nil
		}
		return w.add(name, mode, member.Size, content)
	})
	if err != nil || len(links) == 0 {
		return err
	}
	err = tarMembers(raw, func(member *tar.Header, content io.Reader) error {
		names := links[path.Clean(member.Name)]
		if member.Typeflag != tar.TypeReg || len(names) == 0 {
			return nil
		}
		delete(links, path.Clean(member.Name))
		if member.Size > maxLinked {
			w.left = append(w.left, names...)
			return nil
		}
		text, err := io.ReadAll(content)
		if err != nil {
			return fmt.Errorf("read %s: %w", member.Name, err)
		}
		for _, name := range names {
			if err := w.add(name, member.FileInfo().Mode(), member.Size, bytes.NewReader(text)); err != nil {
				return err
			}
		}
		return nil
	})
	for _, names := range links {
		for _, name := range names {
			w.skip(name)
		}
	}
	return err
}

// tarMembers yields each member of a tar, which may be compressed by gzip.
func tarMembers(raw []byte, each func(*tar.Header, io.Reader) error) error {
	broken := func() error {
		return farm.Invalidf("content_base64 is not a tar, or it is truncated.")
	}
	var from io.Reader = bufio.NewReader(bytes.NewReader(raw))
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(from)
		if err != nil {
			return broken()
		}
		from = unzipped
	}
	all := tar.NewReader(from)
	for {
		member, err := all.Next()
		if errors.Is(err, io.EOF) && len(raw) > 0 {
			return nil
		}
		if err != nil {
			return broken()
		}
		if err := each(member, all); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return broken()
			}
			return err
		}
	}
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
		case hiddenName(name):
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

// hiddenName reports whether a path is not sent: hidden files, and the names of nobodySends.
func hiddenName(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), func(element string) bool {
		return strings.HasPrefix(element, ".") || nobodySends(element)
	})
}

// linked returns the file of the same directory that a link leads to, or "" if it leads elsewhere or to another link.
func linked(files fs.FS, name string) string {
	target, err := fs.ReadLink(files, name)
	if err != nil || path.IsAbs(target) {
		return ""
	}
	to := path.Join(path.Dir(name), target)
	if !fs.ValidPath(to) || hiddenName(to) {
		return ""
	}
	if info, err := fs.Lstat(files, to); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return to
}

// maxSkipped is how many skipped names an answer lists.
const maxSkipped = 50

func (w *packer) skip(name string) {
	if !slices.ContainsFunc(strings.Split(strings.TrimRight(name, "/"), "/"), nobodySends) {
		w.left = append(w.left, name)
	}
}

// skipped lists the skipped names.
func (w *packer) skipped() []string {
	slices.Sort(w.left)
	if more := len(w.left) - maxSkipped; more > 0 {
		return append(w.left[:maxSkipped:maxSkipped], fmt.Sprintf("and %d more", more))
	}
	return w.left
}
