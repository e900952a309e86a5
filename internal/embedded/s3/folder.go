package s3

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	objectsDir = "objects"
	asideDir   = "aside"
	uploadsDir = "uploads"
	// maxPart is the longest part of a key: the limit of file systems.
	maxPart = 255
	// placeAttempts is how often putting a file in its folder is tried: a concurrent delete may remove the new folder.
	placeAttempts = 1000
	// copyBuffer is how much of an object is in memory while it is written.
	copyBuffer = 256 << 10
)

// folder is the data folder of the service.
type folder struct {
	root    *os.Root
	keeper  keeper
	uploads uploadLocks
}

// object describes one object.
type object struct {
	key      string
	size     int64
	modified time.Time
	labels   labels
}

func (o object) etag() string { return `"` + strings.Trim(o.labels[etagLabel], `"`) + `"` }

func openFolder(dir string) (*folder, error) {
	for _, sub := range []string{objectsDir, asideDir, uploadsDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("make S3 folder: %w", err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open S3 folder: %w", err)
	}
	f := &folder{root: root}
	err = f.clean()
	if err == nil {
		f.keeper, err = chooseKeeper(root)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open S3 folder %s: %w", dir, err), root.Close())
	}
	return f, nil
}

// clean removes the incomplete files of a killed process.
func (f *folder) clean() error {
	drafts, err := readDir(f.root, asideDir)
	if err != nil {
		return err
	}
	for _, e := range drafts {
		if err := f.root.RemoveAll(path.Join(asideDir, e.Name())); err != nil {
			return err
		}
	}
	return f.cleanUploads()
}

// cleanUploads removes uploads whose removal was interrupted after that of their description: nothing else finds them.
func (f *folder) cleanUploads() error {
	entries, err := readDir(f.root, uploadsDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := path.Join(uploadsDir, e.Name())
		if _, err := f.root.Lstat(path.Join(dir, uploadFile)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := f.root.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// chooseKeeper keeps using the place where labels were stored before; in a new folder it prefers extended attributes, if the file
// system has them.
func chooseKeeper(root *os.Root) (keeper, error) {
	if _, err := root.Stat(metaDir); err == nil {
		return newSidecar(root), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	name := path.Join(asideDir, "probe")
	probe, err := root.Create(name)
	if err != nil {
		return nil, err
	}
	err = unix.Fsetxattr(int(probe.Fd()), attrPrefix+"sandfarm", []byte("1"), 0)
	if cleanup := errors.Join(probe.Close(), root.Remove(name)); cleanup != nil {
		return nil, cleanup
	}
	if err == nil {
		return attributes{}, nil
	}
	return newSidecar(root), root.Mkdir(metaDir, 0o700)
}

// draft is a file that is being written in aside/.
type draft struct {
	*os.File
	f    *folder
	name string
}

func (f *folder) draft() (*draft, error) {
	name := path.Join(asideDir, rand.Text())
	file, err := f.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &draft{File: file, f: f, name: name}, nil
}

// fill writes all of r.
func (d *draft) fill(r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{d.File}, r, make([]byte, copyBuffer))
	return err
}

// discard removes a draft that was not placed. After place it does nothing.
func (d *draft) discard() {
	_ = d.Close()
	if d.name != "" {
		_ = d.f.root.Remove(d.name)
	}
}

// place makes the draft the file at a path. An existing file is replaced; after a crash the path has the old or the new file,
// complete.
func (d *draft) place(to string) error {
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return err
	}
	dir := path.Dir(to)
	if err := inFolder(d.f.root, dir, func() error { return d.f.root.Rename(d.name, to) }); err != nil {
		return err
	}
	d.name = ""
	return d.f.syncDir(dir)
}

// inFolder makes a folder and calls place, again if the folder was removed in between.
func inFolder(root *os.Root, dir string, place func() error) error {
	var err error
	for range placeAttempts {
		if err = root.MkdirAll(dir, 0o700); err == nil {
			err = place()
		} else if errors.Is(err, fs.ErrExist) && !isFile(root, dir) {
			// MkdirAll found a folder, which was removed before it could look what it was.
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

func isFile(root *os.Root, name string) bool {
	info, err := root.Lstat(name)
	return err == nil && !info.IsDir()
}

// syncDir makes renames into a folder durable.
func (f *folder) syncDir(dir string) error {
	d, err := f.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) { // the object was deleted in the meantime, and its folder too
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// put makes the draft the object of a key.
func (f *folder) put(d *draft, bucket, key string, l labels) error {
	return f.keeper.put(d.File, bucket, key, l, func() error { return d.place(objectPath(bucket, key)) })
}

// openAttempts is how often an object is opened that is replaced before its labels are read.
const openAttempts = 10

// open opens an object; the caller closes the file.
func (f *folder) open(bucket, key string) (file *os.File, o object, err error) {
	for range openAttempts {
		if file, o, err = f.openOnce(bucket, key); !errors.Is(err, errReplaced) {
			break
		}
	}
	return file, o, err
}

func (f *folder) openOnce(bucket, key string) (*os.File, object, error) {
	file, err := f.root.Open(objectPath(bucket, key))
	if errors.Is(err, unix.ENOTDIR) {
		return nil, object{}, errNoKey
	}
	if err != nil {
		return nil, object{}, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNoKey
	}
	o := object{key: key}
	if err == nil {
		o.size, o.modified = info.Size(), info.ModTime()
		o.labels, err = f.keeper.load(file, bucket, key)
	}
	if err != nil {
		return nil, object{}, errors.Join(err, file.Close())
	}
	return file, o, nil
}

// remove removes an object, and its folders if they are empty then. A missing object counts as removed.
func (f *folder) remove(bucket, key string) error {
	name := objectPath(bucket, key)
	info, err := f.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return nil
	}
	return f.keeper.remove(bucket, key, func() error {
		if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		prune(f.root, path.Dir(name), path.Join(objectsDir, bucket))
		return nil
	})
}

func (f *folder) findBucket(bucket string) error {
	info, err := f.root.Stat(path.Join(objectsDir, bucket))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return errNoBucket
	}
	return err
}

func (f *folder) makeBucket(bucket string) error {
	err := f.root.Mkdir(path.Join(objectsDir, bucket), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return errBucketExists
	}
	return cmpError(err, f.syncDir(objectsDir))
}

func objectPath(bucket, key string) string { return path.Join(objectsDir, bucket, key) }

// prune removes empty folders from dir upwards, except top.
func prune(root *os.Root, dir, top string) {
	for dir != top && strings.HasPrefix(dir, top+"/") {
		if root.Remove(dir) != nil {
			return
		}
		dir = path.Dir(dir)
	}
}

// readDir lists a folder by name; a missing one is empty.
func readDir(root *os.Root, dir string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, err
}

func checkBucket(name string) error {
	letters := strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == ""
	if !letters || len(name) < 3 || len(name) > 63 || name[0] == '.' || name[0] == '-' {
		return errBucketName
	}
	return nil
}

func checkKey(key string) error {
	if !utf8.ValidString(key) {
		return errKey
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxPart || strings.Contains(part, "\x00") {
			return errKey
		}
	}
	return nil
}
