package s3

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxLabels is the limit of S3 for the metadata of an object; the attributes of a file system can hold a little more.
	maxLabels = 2 << 10
	// userMetadata is the prefix of the headers with the caller's own metadata.
	userMetadata = "x-amz-meta-"
	etagLabel    = "etag"
	attrPrefix   = "user."
	metaDir      = "meta"
)

// kept are the headers that are stored with an object and sent with it.
var kept = []string{ //nolint:gochecknoglobals // a table
	"content-type", "content-disposition", "content-encoding", "content-language", "cache-control", "expires",
}

// labels are the metadata of an object: lower-case names of headers, and etagLabel.
type labels map[string]string

// labelsOf returns the metadata in a request.
func labelsOf(h http.Header) (labels, error) {
	l := labels{}
	for _, name := range kept {
		value := h.Get(name)
		if name == "content-encoding" { // describes the request, not the object
			value = strings.Trim(strings.ReplaceAll(value, "aws-chunked", ""), ", ")
		}
		if value != "" {
			l[name] = value
		}
	}
	size := 0
	for name, values := range h {
		if name = strings.ToLower(name); strings.HasPrefix(name, userMetadata) {
			l[name] = strings.Join(values, ",")
		}
	}
	for name, value := range l {
		size += len(name) + len(value)
	}
	if size > maxLabels {
		return nil, errLabels
	}
	return l, nil
}

// keeper stores labels beside the content of an object.
type keeper interface {
	// store is called before the file is placed under its key.
	store(f *os.File, bucket, key string, l labels) error
	load(f *os.File, bucket, key string) (labels, error)
	remove(bucket, key string) error
}

// attributes keeps labels in the extended attributes of the file: both change in one step.
type attributes struct{}

func (attributes) store(f *os.File, _, _ string, l labels) error {
	for name, value := range l {
		if err := unix.Fsetxattr(int(f.Fd()), attrPrefix+name, []byte(value), 0); err != nil {
			return &fs.PathError{Op: "set attribute", Path: name, Err: err}
		}
	}
	return nil
}

func (attributes) load(f *os.File, _, _ string) (labels, error) {
	names := make([]byte, 4<<10)
	n, err := unix.Flistxattr(int(f.Fd()), names)
	if err != nil {
		return nil, &fs.PathError{Op: "list attributes", Path: f.Name(), Err: err}
	}
	l := labels{}
	value := make([]byte, maxLabels+1)
	for name := range strings.SplitSeq(strings.Trim(string(names[:n]), "\x00"), "\x00") {
		label, ours := strings.CutPrefix(name, attrPrefix)
		if !ours || !isLabel(label) {
			continue
		}
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			return nil, &fs.PathError{Op: "read attribute", Path: name, Err: err}
		}
		l[label] = string(value[:n])
	}
	return l, nil
}

func (attributes) remove(string, string) error { return nil }

// isLabel reports whether a name is one of a label: other things are stored in the same place.
func isLabel(name string) bool {
	if name == etagLabel || strings.HasPrefix(name, userMetadata) {
		return true
	}
	for _, k := range kept {
		if k == name {
			return true
		}
	}
	return false
}

// sidecar keeps labels in separate files.
type sidecar struct{ root *os.Root }

func (sidecar) dir(bucket, key string) string { return path.Join(metaDir, bucket, key, metaDir) }

func (s sidecar) store(_ *os.File, bucket, key string, l labels) error {
	dir := s.dir(bucket, key)
	if err := s.root.RemoveAll(dir); err != nil {
		return err
	}
	return inFolder(s.root, dir, func() error {
		for name, value := range l {
			if err := s.root.WriteFile(path.Join(dir, name), []byte(value), 0o600); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s sidecar) load(_ *os.File, bucket, key string) (labels, error) {
	l := labels{}
	dir := s.dir(bucket, key)
	files, err := readDir(s.root, dir)
	if err != nil {
		return nil, err
	}
	for _, e := range files {
		if !isLabel(e.Name()) {
			continue
		}
		value, err := s.root.ReadFile(path.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) { // it is being replaced
			continue
		}
		if err != nil {
			return nil, err
		}
		l[e.Name()] = string(value)
	}
	return l, nil
}

func (s sidecar) remove(bucket, key string) error {
	dir := s.dir(bucket, key)
	if err := s.root.RemoveAll(dir); err != nil {
		return err
	}
	prune(s.root, path.Dir(dir), path.Join(metaDir, bucket))
	return nil
}
