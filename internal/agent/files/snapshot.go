package files

import (
	"encoding/binary"
	"hash/maphash"
	"io/fs"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxWalked bounds the files of a snapshot; further files are not compared.
	maxWalked = 200_000
	// maxPathsBytes bounds the names in an outcome, so that it fits into a frame.
	maxPathsBytes = 8 << 20
)

// Snapshot is the state of a workspace at one time: a hash of the path of each regular file, with a hash of its lstat
// result. It takes 16 bytes per file, which keeps the agent small.
type Snapshot struct {
	of    *Workspace
	files map[uint64]uint64
}

// Snapshot records the state of the workspace.
func (w *Workspace) Snapshot() Snapshot {
	s := Snapshot{of: w, files: map[uint64]uint64{}}
	w.eachFile(func(path string, st *unix.Stat_t) { s.files[maphash.String(w.seed, path)] = s.stamp(st) })
	return s
}

// stamp is a hash that changes with a file's size, inode and times.
func (s Snapshot) stamp(st *unix.Stat_t) uint64 {
	var b [48]byte
	for i, n := range []int64{st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, int64(st.Ino)} { //nolint:gosec // bits only
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n)) //nolint:gosec // bits only
	}
	return maphash.Bytes(s.of.seed, b[:])
}

// Changes lists the regular files that are new or different since the snapshot, sorted by path: at most maxFiles of at most
// maxBytes each (0: no limit). skipped counts files over the limits, and files whose path no call could use: it is too
// long, or not UTF-8.
func (s Snapshot) Changes(maxFiles int, maxBytes int64) (files []agent.ChangedFile, skipped int) {
	s.of.eachFile(func(path string, st *unix.Stat_t) {
		if old, ok := s.files[maphash.String(s.of.seed, path)]; ok && old == s.stamp(st) {
			return
		}
		if clean, err := farm.CleanFilePath(path); err != nil || clean != path || (maxBytes > 0 && st.Size > maxBytes) {
			skipped++
			return
		}
		files = append(files, agent.ChangedFile{Path: path, Size: st.Size})
	})
	sort.Slice(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	keep, size := 0, 0
	for keep < len(files) && (maxFiles <= 0 || keep < maxFiles) {
		if size += len(files[keep].Path); size > maxPathsBytes {
			break
		}
		keep++
	}
	return files[:keep], skipped + len(files) - keep
}

// eachFile calls do for every regular file of the workspace, at most maxWalked. It skips files that vanish or cannot be read.
func (w *Workspace) eachFile(do func(path string, st *unix.Stat_t)) {
	top, err := w.top()
	if err != nil {
		return
	}
	defer top.close()
	count := 0
	_ = walk(top, ".", false, func(f found, err error) error {
		if err != nil || !f.isRegular() {
			return nil
		}
		if count++; count > maxWalked {
			return fs.SkipAll
		}
		do(f.path, &f.st)
		return nil
	})
}
