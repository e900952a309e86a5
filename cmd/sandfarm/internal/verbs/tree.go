package verbs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/sandfarm/sandfarm/client"
)

// putTree sends a directory as one tar stream.
func putTree(ctx context.Context, files *client.Files, from, to string, progress *progress) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return fmt.Errorf("read directory: %w", err)
	}
	defer root.Close()
	return sendTar(from, func(w io.Writer) error { return pack(w, root, to, progress) }, func(r io.Reader) error { return files.PutTar(ctx, "", r) })
}

// pack writes directories and regular files below the name to, and counts the content of the files. Links, sockets and other special files are left out.
func pack(w io.Writer, root *os.Root, to string, progress *progress) error {
	t := tar.NewWriter(w)
	err := fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() && !entry.Type().IsRegular() {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		header := &tar.Header{
			Name: path.Join(to, name), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(),
			Typeflag: tar.TypeReg, Size: info.Size(),
		}
		if entry.IsDir() {
			header.Name, header.Typeflag, header.Size = header.Name+"/", tar.TypeDir, 0
			return t.WriteHeader(header)
		}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		return copyFile(progress.writer(t), root, name, info.Size())
	})
	return errors.Join(err, t.Close())
}

// packNames writes files with these names. One that vanished is left out.
func packNames(w io.Writer, root *os.Root, names []work) error {
	t := tar.NewWriter(w)
	for _, one := range names {
		info, err := root.Lstat(one.name)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		header := &tar.Header{Name: one.name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Typeflag: tar.TypeReg, Size: info.Size()}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if err := copyFile(t, root, one.name, info.Size()); err != nil {
			return err
		}
	}
	return t.Close()
}

// copyFile copies exactly as many bytes as the header announces, even if the file grows meanwhile.
func copyFile(w io.Writer, root *os.Root, name string, length int64) error {
	file, err := root.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.CopyN(w, file, length); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}
