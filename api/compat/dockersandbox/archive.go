package dockersandbox

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxLinked is the largest file of a tar that links may copy: its content is kept in memory.
const maxLinked = 16 << 20

// archive repacks the files and directories of a tar. A link to a file of the tar becomes a copy of it; other links and devices are
// skipped.
func (w *packer) archive(raw []byte) error {
	links := map[string][]string{} // names of links, by their target
	err := members(raw, func(member *tar.Header, content io.Reader) error {
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
	err = members(raw, func(member *tar.Header, content io.Reader) error {
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

// members yields each member of a tar, which may be compressed by gzip.
func members(raw []byte, each func(*tar.Header, io.Reader) error) error {
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
