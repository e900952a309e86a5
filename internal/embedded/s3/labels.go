package s3

import (
	"io/fs"
	"net/http"
	"os"
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
var kept = []string{
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
	// put stores the labels of a file and calls place, which makes it the object. Whenever that fails, the object has its old labels.
	put(f *os.File, bucket, key string, l labels, place func() error) error
	load(f *os.File, bucket, key string) (labels, error)
	// remove calls content, which removes the object, and removes its labels.
	remove(bucket, key string, content func() error) error
}

// attributes keeps labels in the extended attributes of the file: both change in one step.
type attributes struct{}

func (attributes) put(f *os.File, _, _ string, l labels, place func() error) error {
	for name, value := range l {
		if err := unix.Fsetxattr(int(f.Fd()), attrPrefix+name, []byte(value), 0); err != nil {
			return &fs.PathError{Op: "set attribute", Path: name, Err: err}
		}
	}
	return place()
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

func (attributes) remove(_, _ string, content func() error) error { return content() }

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
