package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"golang.org/x/sys/unix"
)

const (
	objectsDir = "objects" // the buckets
	sidecarDir = "meta"    // what belongs to objects, where the file system keeps no extended attributes
)

// openBackend opens the folder that holds the buckets. Labels of objects are kept in extended attributes; on a file
// system without them, in a folder beside it. A folder that began with the one stays with it.
func openBackend(cfg S3Config) (*posix.Posix, error) {
	root, side := filepath.Join(cfg.Dir, objectsDir), filepath.Join(cfg.Dir, sidecarDir)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("make S3 folder: %w", err)
	}
	sidecar, err := needsSidecar(root, side)
	if err != nil {
		return nil, err
	}
	var opts posix.PosixOpts
	var store meta.MetadataStorer = meta.XattrMeta{}
	if sidecar {
		if err := os.MkdirAll(side, 0o700); err != nil {
			return nil, fmt.Errorf("make S3 metadata folder: %w", err)
		}
		opts.SideCarDir = side
		if store, err = meta.NewSideCar(side); err != nil {
			return nil, fmt.Errorf("open S3 metadata folder: %w", err)
		}
	}
	backend, err := posix.New(root, store, opts)
	if err != nil {
		return nil, fmt.Errorf("open S3 folder: %w", err)
	}
	return backend, nil
}

// needsSidecar tells whether metadata goes into a folder of its own: it did before, or attributes can not be set here.
func needsSidecar(root, side string) (bool, error) {
	_, err := os.Stat(side)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for S3 metadata folder: %w", err)
	}
	probe, err := os.CreateTemp(filepath.Dir(root), ".xattr-*")
	if err != nil {
		return false, fmt.Errorf("probe S3 folder: %w", err)
	}
	defer func() {
		_ = probe.Close()
		_ = os.Remove(probe.Name())
	}()
	err = unix.Fsetxattr(int(probe.Fd()), "user.sandfarm", []byte("1"), 0)
	return err != nil, nil
}
