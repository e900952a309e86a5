package execution

import (
	"cmp"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// mostSpool is the largest disk space that is chosen without a setting.
const mostSpool = 4 << 30

// newRoom makes the room for spools: memory from a budget, then a number of MiB of the temporary directory. 0 means a quarter of its
// free space, and none if its files are memory themselves.
func newRoom(memory *budget.Budget, dir string, spoolMB int) room {
	r := room{memory: memory, dir: dir}
	size := int64(spoolMB) << 20
	if spoolMB == 0 {
		size = freeOnDisk(cmp.Or(dir, os.TempDir()))
	}
	if size > 0 {
		r.disk = budget.New(size)
	}
	return r
}

// freeOnDisk is a quarter of the free space of a directory; 0 if there is none, and if its files are in memory.
func freeOnDisk(dir string) int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return 0
	}
	return min(int64(fs.Bavail)*fs.Bsize/4, mostSpool) //nolint:gosec // no disk has that many blocks
}
