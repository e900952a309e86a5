package s3

import (
	"errors"
	"hash/maphash"
	"io/fs"
	"os"
	"path"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

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
