package kernel

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// kernelBytes is what a kernel needs to start: some 60 MiB, and as much under gVisor, whose own memory counts.
const kernelBytes = 128 << 20

// place is a writable place of the sandbox. Its files are in memory.
type place struct {
	path string
	used int64 // bytes of its files
	full bool  // no byte or no file more fits
}

// fullness says what of the sandbox is full, for a kernel that does not start; empty if nothing is.
func (ks *Kernels) fullness() string {
	_, limit := process.Memory()
	return sentence(ks.places(), limit)
}

// because is the error of a kernel that did not start with what of the sandbox is full, and whether a process was refused meanwhile: the kernel
// itself may have ended without a word.
func because(err error, full string, refused bool) error {
	switch {
	case refused:
		return fmt.Errorf("%w: %w", err, unix.EAGAIN)
	case full != "":
		return fmt.Errorf("%s (%w)", full, err)
	}
	return err
}

// Files returns the bytes of memory that the sandbox's files take, and the places that hold a MiB or more of them, with their sizes.
func (ks *Kernels) Files() (used int64, places string) { return filesIn(ks.places()) }

// places are the writable places whose files are in memory.
func (ks *Kernels) places() []place {
	var places []place
	for _, path := range []string{ks.cfg.Workspace, process.Getenv(ks.cfg.Env, "HOME"), ks.cfg.TmpDir, ks.cfg.RunDir} {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) != nil || st.Type != unix.TMPFS_MAGIC {
			continue
		}
		used := int64(st.Blocks-st.Bfree) * st.Bsize //nolint:gosec // of a file system in memory
		places = append(places, place{path: path, used: used, full: st.Bavail == 0 || st.Files > 0 && st.Ffree == 0})
	}
	return places
}

func filesIn(places []place) (used int64, large string) {
	var sizes []string
	for _, p := range places {
		if used += p.used; p.used >= 1<<20 {
			sizes = append(sizes, fmt.Sprintf("%s %d MiB", p.path, p.used>>20))
		}
	}
	return used, strings.Join(sizes, ", ")
}

// sentence is fullness for these places and this limit of memory; 0: unknown.
func sentence(places []place, limit int64) string {
	var full []string
	for _, p := range places {
		if p.full {
			full = append(full, p.path)
		}
	}
	files, large := filesIn(places)
	var why, more []string
	if len(full) > 0 {
		why, more = append(why, "nothing more fits into "+strings.Join(full, ", ")), append(more, "disk_mb")
	}
	if limit > 0 && limit-files < kernelBytes && large != "" {
		why = append(why, fmt.Sprintf("files take %d of the sandbox's %d MiB of memory (%s)", files>>20, limit>>20, large))
		more = append(more, "memory_mb")
	}
	if len(why) == 0 {
		return ""
	}
	return strings.Join(why, ", and ") + ". Delete files there, or create a sandbox with more " + strings.Join(more, " and ")
}
