package s3

import (
	"errors"
	"hash/maphash"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

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

// sidecar keeps labels in separate files, for file systems without extended attributes. The folder of an object's labels has one folder for
// each version of the content, named by the inode of the file: a reader finds the labels of the content that it has opened, and a crash before
// the content is in place leaves the old labels.
type sidecar struct {
	root  *os.Root
	seed  maphash.Seed
	locks *[64]sync.Mutex // by key: a put removes the labels of all other versions
}

// errReplaced says that the labels of an opened file are gone, since another one is the object now.
var errReplaced = errors.New("the object was replaced")

func newSidecar(root *os.Root) sidecar {
	return sidecar{root: root, seed: maphash.MakeSeed(), locks: new([64]sync.Mutex)}
}

func (s sidecar) lock(bucket, key string) *sync.Mutex {
	return &s.locks[maphash.String(s.seed, bucket+"/"+key)%uint64(len(s.locks))]
}

func (sidecar) dir(bucket, key string) string { return path.Join(metaDir, bucket, key, metaDir) }

// version names a file. Its inode is not used again while the file exists.
func version(f *os.File) (string, error) {
	var info unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &info); err != nil {
		return "", &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return strconv.FormatUint(info.Ino, 10), nil
}

func (s sidecar) put(f *os.File, bucket, key string, l labels, place func() error) error {
	own, err := version(f)
	if err != nil {
		return err
	}
	lock := s.lock(bucket, key)
	lock.Lock()
	defer lock.Unlock()
	all := s.dir(bucket, key)
	dir := path.Join(all, own)
	if err := s.root.RemoveAll(dir); err != nil { // of an earlier file with this inode
		return err
	}
	err = inFolder(s.root, dir, func() error {
		for name, value := range l {
			if err := s.root.WriteFile(path.Join(dir, name), []byte(value), 0o600); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = place()
	}
	if err != nil {
		return errors.Join(err, s.root.RemoveAll(dir))
	}
	others, err := readDir(s.root, all)
	if err != nil {
		return err
	}
	for _, e := range others {
		if e.Name() == own {
			continue
		}
		if err := s.root.RemoveAll(path.Join(all, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (s sidecar) load(f *os.File, bucket, key string) (labels, error) {
	own, err := version(f)
	if err != nil {
		return nil, err
	}
	dir := path.Join(s.dir(bucket, key), own)
	files, err := readDir(s.root, dir)
	if err != nil {
		return nil, err
	}
	l := labels{}
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
	if len(l) == 0 {
		return nil, errReplaced
	}
	return l, nil
}

func (s sidecar) remove(bucket, key string, content func() error) error {
	lock := s.lock(bucket, key)
	lock.Lock()
	defer lock.Unlock()
	if err := content(); err != nil {
		return err
	}
	dir := s.dir(bucket, key)
	if err := s.root.RemoveAll(dir); err != nil {
		return err
	}
	prune(s.root, path.Dir(dir), path.Join(metaDir, bucket))
	return nil
}
