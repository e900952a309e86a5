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
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Index is the page of the dashboard.
const Index = "index.html"

//go:embed *.html *.css *.svg js
var sources embed.FS

// main is the module that the page starts with.
const main = "js/main.js"

// File is a file of the dashboard.
type File struct {
	Name    string // its path in this folder
	Content []byte
	Type    string // its media type
	ETag    string // quoted

	packed func() []byte
}

// Gzip is the content, compressed. It is compressed once, when it is first asked for.
func (f *File) Gzip() []byte { return f.packed() }

// Files are the files of the dashboard. They are safe for concurrent use.
type Files struct {
	byName  map[string]*File
	version string // names what all files together contain: the first part of paths that browsers may keep for good
}

// types are the media types of what a browser loads. Other files, such as licences, are not served.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// New reads the files, which are part of the program. The page names all modules that it starts with, so that a browser asks for them at the
// same time instead of one import after the other, and names them by the version, so that it asks once.
func New() (*Files, error) {
	files := &Files{byName: map[string]*File{}}
	all := sha256.New()
	err := fs.WalkDir(sources, ".", func(name string, entry fs.DirEntry, err error) error {
		kind := types[path.Ext(name)]
		if err != nil || entry.IsDir() || kind == "" {
			return err
		}
		content, err := sources.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(all, "%s %d\n%s", name, len(content), content)
		files.byName[name] = newFile(name, kind, content)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the dashboard: %w", err)
	}
	files.version = versionMark + base64.RawURLEncoding.EncodeToString(all.Sum(nil)[:12])
	page := files.byName[Index]
	files.byName[Index] = newFile(Index, page.Type, files.index(page.Content))
	return files, nil
}

func newFile(name, kind string, content []byte) *File {
	sum := sha256.Sum256(content)
	return &File{
		Name: name, Content: content, Type: kind, ETag: `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`,
		packed: sync.OnceValue(func() []byte { return pack(content) }),
	}
}

// versionMark begins the part of a path that names a version; no folder here begins so.
const versionMark = "v-"

// imports are the static imports of a module, as our modules and their libraries are written.
var imports = regexp.MustCompile(`(?m)(?:^import|^export|^\} ).*?from ?"(\.[^"]+)"|^import\{.*?\}from"(\.[^"]+)"`)

// index is the page with the version in its addresses and a link for each module that it starts with.
func (f *Files) index(page []byte) []byte {
	var links strings.Builder
	for _, name := range f.Start() {
		fmt.Fprintf(&links, "<link rel=\"modulepreload\" href=\"ui/%s\">\n", name)
	}
	text := strings.Replace(string(page), "</head>", links.String()+"</head>", 1)
	return []byte(strings.ReplaceAll(text, `="ui/`, `="ui/`+f.version+`/`))
}

// Start lists the modules that the page starts with, each after the first one that imports it.
func (f *Files) Start() []string {
	names := []string{main}
	for i := 0; i < len(names); i++ {
		file, ok := f.byName[names[i]]
		if !ok {
			continue // a test looks for modules that are not there
		}
		for _, match := range imports.FindAllSubmatch(file.Content, -1) {
			name := path.Join(path.Dir(names[i]), string(match[1])+string(match[2]))
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Find returns a file by its path in this folder, such as "js/main.js", which may follow a version. What it returns as lasting is true if the path
// names the version of these files, so that what it leads to never changes.
func (f *Files) Find(name string) (file *File, lasting, ok bool) {
	name = strings.TrimPrefix(name, "/")
	if strings.HasPrefix(name, versionMark) {
		version, rest, _ := strings.Cut(name, "/")
		name, lasting = rest, version == f.version
	}
	file, ok = f.byName[name]
	return file, lasting, ok
}

func pack(content []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid
	_, _ = w.Write(content)                                 // a buffer takes everything
	_ = w.Close()
	return out.Bytes()
}
