package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name string // below the archive's folder
	from string // where its content is
	mode fs.FileMode
}

// writeArchive writes a zip or a tar.gz, by the extension of the path, with all entries below one folder, and returns its size.
// The same entries and time give the same bytes.
func writeArchive(path, folder string, entries []entry, modified time.Time) (size int64, err error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	entries = slices.SortedFunc(slices.Values(entries), func(a, b entry) int { return strings.Compare(a.name, b.name) })
	pack := packTar
	if filepath.Ext(path) == ".zip" {
		pack = packZip
	}
	if err := pack(file, folder, entries, modified); err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	return info.Size(), nil
}

func packTar(out io.Writer, folder string, entries []entry, modified time.Time) error {
	z, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, e := range entries {
		content, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: folder + "/" + e.name, Mode: int64(e.mode), Size: int64(len(content)), ModTime: modified, Format: tar.FormatPAX}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if _, err := t.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func packZip(out io.Writer, folder string, entries []entry, modified time.Time) error {
	z := zip.NewWriter(out)
	for _, e := range entries {
		content, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: folder + "/" + e.name, Method: zip.Deflate, Modified: modified}
		header.SetMode(e.mode)
		w, err := z.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	return z.Close()
}

// writeSums writes SHA256SUMS over the named files of a directory, in the form that sha256sum -c reads.
func writeSums(dir string, names []string) error {
	slices.Sort(names)
	var sums strings.Builder
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("write SHA256SUMS: %w", err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644); err != nil { //nolint:gosec // readable by all, as archives are
		return fmt.Errorf("write SHA256SUMS: %w", err)
	}
	return nil
}
