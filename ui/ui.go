// Package ui has the dashboard: the pages that people see at the root of the API. Its files are served as they are written here; there is no
// build step. They speak only /v1, and /session to log in. README.md in this folder says how they are made.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
)

// Index is the page of the dashboard.
const Index = "index.html"

//go:embed *.html *.css *.svg js
var sources embed.FS

// File is a file of the dashboard.
type File struct {
	Content []byte
	Type    string // its media type
	ETag    string // quoted

	packed func() []byte
}

// Gzip is the content, compressed. It is compressed once, when it is first asked for.
func (f *File) Gzip() []byte { return f.packed() }

// Files are the files of the dashboard. They are safe for concurrent use.
type Files struct{ byName map[string]*File }

// types are the media types of what a browser loads. Other files, such as licences, are not served.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// New reads the files, which are part of the program.
func New() (*Files, error) {
	files := &Files{byName: map[string]*File{}}
	err := fs.WalkDir(sources, ".", func(name string, entry fs.DirEntry, err error) error {
		kind := types[path.Ext(name)]
		if err != nil || entry.IsDir() || kind == "" {
			return err
		}
		content, err := sources.ReadFile(name)
		if err != nil {
			return err //nolint:wrapcheck // it names the file
		}
		sum := sha256.Sum256(content)
		files.byName[name] = &File{
			Content: content, Type: kind, ETag: `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`,
			packed: sync.OnceValue(func() []byte { return pack(content) }),
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the dashboard: %w", err)
	}
	return files, nil
}

// Find returns a file by its path in this folder, such as "js/main.js".
func (f *Files) Find(name string) (*File, bool) {
	file, ok := f.byName[strings.TrimPrefix(name, "/")]
	return file, ok
}

func pack(content []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid
	_, _ = w.Write(content)                                 // a buffer takes everything
	_ = w.Close()
	return out.Bytes()
}
