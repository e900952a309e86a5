package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// WriteTar writes the regular files and directories under a directory as a tar archive.
func (w *Workspace) WriteTar(p string, to io.Writer) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	top, err := w.top()
	if err != nil {
		return err
	}
	defer top.close()
	of, err := top.stat(p, true)
	if err != nil {
		return Problem(err, p)
	}
	if !of.isDir() {
		return farm.Invalidf("%s is not a directory", p)
	}
	out := tar.NewWriter(to)
	err = top.walk(p, func(name string, of info) error {
		switch {
		case !utf8.ValidString(name):
			return skipIf(of.isDir())
		case of.isDir():
			return out.WriteHeader(&tar.Header{
				Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: of.modTime(), Format: tar.FormatPAX,
			})
		case of.isRegular():
			return w.tarFile(out, path.Join(p, name), name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write tar: %w", err)
	}
	return out.Close()
}

// tarFile writes one file. It skips a file that has vanished or is no longer a regular file.
func (w *Workspace) tarFile(out *tar.Writer, p, name string) error {
	f, e, err := w.Open(p)
	if err != nil {
		if c := farm.CodeOf(err); c == farm.CodeNotFound || c == farm.CodeInvalid {
			return nil
		}
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: e.Size, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX,
	}); err != nil {
		return err
	}
	n, err := io.CopyN(out, f, e.Size)
	if errors.Is(err, io.EOF) { // the file has shrunk: fill the rest with zeros
		_, err = io.CopyN(out, zeros{}, e.Size-n)
	}
	return err
}

// zeros is an infinite reader of zero bytes.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
