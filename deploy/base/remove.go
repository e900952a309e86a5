package base

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// detach is MNT_DETACH of umount2: the mount vanishes from the tree even if something still uses it.
const detach = 2

// removeTree removes a tree that debootstrap made. If debootstrap was killed, /proc and /sys can still be mounted in it. They are
// unmounted first; if that fails, the tree is kept, so that no file of the host is ever deleted through it.
func removeTree(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, point := range slices.Backward(mounts) { // the last mounted first
		if err := syscall.Unmount(point, detach); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	if left, err := mountsBelow(dir); err != nil || len(left) > 0 {
		return errors.Join(append(errs, err, fmt.Errorf("remove tree: %s still holds mounts and is left there", dir))...)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	return nil
}

// mountsBelow lists the mount points in a directory, in the order in which they were mounted.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	var found []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
		if strings.HasPrefix(point, dir+"/") {
			found = append(found, point)
		}
	}
	return found, lines.Err()
}
