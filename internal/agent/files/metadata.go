package files

import (
	"bytes"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxNames bounds the names of a file's extended attributes, in bytes, as Linux does.
	maxNames = 64 << 10
	// smallNames is what suffices for those of nearly every file.
	smallNames = 512
)

// metadataOf reads the metadata of a file, without following a link. What is not metadata that callers could set is left out.
func metadataOf(p string) map[string]string {
	var out map[string]string
	value := make([]byte, farm.MaxMetadataValue+1)
	for _, name := range attributes(func(to []byte) (int, error) { return unix.Llistxattr(p, to) }) {
		n, err := unix.Lgetxattr(p, name, value)
		if err != nil { // it has more, or is gone
			continue
		}
		one := map[string]string{strings.TrimPrefix(name, farm.MetadataPrefix): string(value[:n])}
		if farm.CheckMetadata(one) != nil {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		for key, text := range one {
			out[key] = text
		}
		if len(out) == farm.MaxMetadata {
			break
		}
	}
	return out
}

// attributes are the names of the extended attributes that are metadata; none where there are no attributes.
func attributes(list func([]byte) (int, error)) []string {
	names := make([]byte, smallNames)
	n, err := list(names)
	if errors.Is(err, unix.ERANGE) {
		names = make([]byte, maxNames)
		n, err = list(names)
	}
	if err != nil {
		return nil
	}
	var out []string
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if bytes.HasPrefix(name, []byte(farm.MetadataPrefix)) {
			out = append(out, string(name))
		}
	}
	return out
}

// setMetadata replaces the metadata of a file.
func setMetadata(f *os.File, metadata map[string]string) error {
	fd := int(f.Fd()) //nolint:gosec // a descriptor is small
	for _, name := range attributes(func(to []byte) (int, error) { return unix.Flistxattr(fd, to) }) {
		if _, kept := metadata[strings.TrimPrefix(name, farm.MetadataPrefix)]; !kept {
			if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
				return err
			}
		}
	}
	for key, value := range metadata {
		err := unix.Fsetxattr(fd, farm.MetadataPrefix+key, []byte(value), 0)
		switch {
		case errors.Is(err, unix.ENOTSUP):
			return farm.Invalidf("%s is on a file system that keeps no metadata (extended attributes)", farm.Shorten(f.Name()))
		case err != nil:
			return err
		}
	}
	return nil
}
