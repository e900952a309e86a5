package files

import (
	"encoding/binary"
	"hash/maphash"
	"io/fs"
	"path/filepath"
	"sort"
	"syscall"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/agent"
)

const (
	// maxWalked bounds the files of a snapshot; further files are not compared.
	maxWalked = 200_000
	// maxPathsBytes bounds the names in an outcome, so that it fits into a frame.
	maxPathsBytes = 8 << 20
)

// stagingDir is where uploads are written before they are moved into place. It is never listed, compared or served.
const stagingDir = ".sandfarm-staging"

// Snapshot is the state of a workspace at one time: a hash of the path of each regular file, with a hash of its lstat
// result. It takes 16 bytes per file, which keeps the agent small.
type Snapshot struct {
	dir   string
	seed  maphash.Seed
	files map[uint64]uint64
}

// Snapshot records the state of the workspace.
func (w *Workspace) Snapshot() Snapshot {
	s := Snapshot{dir: w.dir, seed: w.seed, files: map[uint64]uint64{}}
	walkFiles(w.dir, func(path string, st *syscall.Stat_t) { s.files[maphash.String(s.seed, path)] = s.stamp(st) })
	return s
}

// stamp is a hash that changes with a file's size, inode and times.
func (s Snapshot) stamp(st *syscall.Stat_t) uint64 {
	var b [48]byte
	for i, n := range []int64{st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, int64(st.Ino)} { //nolint:gosec,unconvert // bits only
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n)) //nolint:gosec // bits only
	}
	return maphash.Bytes(s.seed, b[:])
}

// Changes lists the regular files that are new or different since the snapshot, sorted by path: at most maxFiles of at most
// maxBytes each (0: no limit). skipped counts files over the limits, and files whose name is not UTF-8, which no answer
// could contain.
func (s Snapshot) Changes(maxFiles int, maxBytes int64) (files []agent.ChangedFile, skipped int) {
	walkFiles(s.dir, func(path string, st *syscall.Stat_t) {
		if old, ok := s.files[maphash.String(s.seed, path)]; ok && old == s.stamp(st) {
			return
		}
		if !utf8.ValidString(path) || (maxBytes > 0 && st.Size > maxBytes) {
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

// walkFiles calls do for every regular file under dir, with its path relative to dir. It skips files that vanish or cannot be
// read.
func walkFiles(dir string, do func(path string, st *syscall.Stat_t)) {
	count := 0
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // vanished or not readable: left out
		}
		if entry.IsDir() {
			if entry.Name() == stagingDir && filepath.Dir(path) == dir {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		if count++; count > maxWalked {
			return fs.SkipAll
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // it vanished
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() {
			do(path[len(dir)+1:], st)
		}
		return nil
	})
}
