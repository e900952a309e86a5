package rest

import (
	"archive/tar"
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// MaxZipList bounds the list of entries that a zip ends with, in bytes: it is held in memory until then. Each entry takes its name and zipEntry.
// It is charged in steps of listStep.
const (
	MaxZipList = 8 << 20
	zipEntry   = 512
	listStep   = 64 << 10
)

// SendTar sends a tar as it is, or compressed if the caller takes that.
func SendTar(c *gin.Context, content io.Reader) error { return SendWhole(c, content, -1) }

// SendZip sends a tar of files, directories and symbolic links as a zip, which is made while it is sent. Entries of other kinds, and names that
// lead out of the directory, are left out. An answer that cannot be completed breaks off; so does one with more entries than MaxZipList, or than
// the tenant's share of the memory, has room for.
func SendZip(c *gin.Context, content io.Reader) error {
	hold := budget.Lasting(c.Request.Context()) // the caller may read slowly
	if err := hold.Add(c.Request.Context(), GzipBytes); err != nil {
		return err
	}
	defer hold.Release()
	c.Status(http.StatusOK)
	return sent(c, 0, -1, writeZip(c.Request.Context(), c.Writer, tar.NewReader(content), hold))
}

func writeZip(ctx context.Context, to io.Writer, from *tar.Reader, hold *budget.Hold) error {
	packer, packed := zip.NewWriter(to), newDeflater(ctx)
	packer.RegisterCompressor(zip.Deflate, func(to io.Writer) (io.WriteCloser, error) { return packed, packed.begin(to) })
	for list, charged := 0, 0; ; {
		entry, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read tar: %w", err)
		}
		if list += len(entry.Name) + zipEntry; list > MaxZipList {
			return errors.New("write zip: there are too many entries for a zip")
		}
		for ; charged < list; charged += listStep {
			if !hold.Grow(listStep) {
				return errors.New("write zip: there is no memory for more entries")
			}
		}
		if err := addToZip(packer, entry, from); err != nil {
			return err
		}
	}
	if err := packer.Close(); err != nil {
		return fmt.Errorf("write zip: %w", err)
	}
	return nil
}

func addToZip(packer *zip.Writer, entry *tar.Header, content io.Reader) error {
	name := strings.Clone(strings.TrimSuffix(entry.Name, "/")) // it may be a part of a header of a MiB, which the list of entries would keep
	if !filepath.IsLocal(name) || strings.Contains(name, `\`) {
		return nil
	}
	header := &zip.FileHeader{Name: name, Modified: entry.ModTime, Method: zip.Deflate}
	header.SetMode(entry.FileInfo().Mode())
	switch entry.Typeflag {
	case tar.TypeReg:
	case tar.TypeDir:
		header.Name, header.Method = name+"/", zip.Store
	case tar.TypeSymlink:
		content = strings.NewReader(entry.Linkname) // as zip has it: the target is the content
	default:
		return nil
	}
	w, err := packer.CreateHeader(header)
	if err == nil && entry.Typeflag != tar.TypeDir {
		_, err = io.Copy(w, content)
	}
	if err != nil {
		return fmt.Errorf("write zip: %w", err)
	}
	return nil
}
