package server

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
	// maxWalked bounds the files that one look at the workspace takes in; those beyond are not looked at.
	maxWalked = 200_000
	// maxPathsBytes bounds the names in an outcome, so that it fits into a frame.
	maxPathsBytes = 8 << 20
)

// stagingDir is where uploads grow before they are moved into place. It is never listed, compared or served.
const stagingDir = ".sandfarm-staging"

// snapshot is the state of a workspace: a hash of each regular file's path to a hash of what lstat says of it. 16 bytes a file keep
// the agent small.
type snapshot struct {
	seed  maphash.Seed
	files map[uint64]uint64
}

func newSnapshot(dir string, seed maphash.Seed) snapshot {
	s := snapshot{seed: seed, files: map[uint64]uint64{}}
	walkFiles(dir, func(path string, st *syscall.Stat_t) { s.files[maphash.String(seed, path)] = s.stamp(st) })
	return s
}

// stamp changes with content, place and time of a file.
func (s snapshot) stamp(st *syscall.Stat_t) uint64 {
	var b [48]byte
	for i, n := range []int64{st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, int64(st.Ino)} { //nolint:gosec,unconvert // bits only
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n)) //nolint:gosec // bits only
	}
	return maphash.Bytes(s.seed, b[:])
}

// changes lists the regular files that are new or different since s, sorted by path, at most maxFiles of at most maxBytes each (0: no
// cap). skipped counts those that the caps
// left out, and those whose name is not UTF-8 (no answer could name them).
func (s snapshot) changes(dir string, maxFiles int, maxBytes int64) (files []agent.ChangedFile, skipped int) {
	walkFiles(dir, func(path string, st *syscall.Stat_t) {
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

// walkFiles calls do for every regular file under dir, with its path relative to dir. What vanishes or cannot be read is left out.
func walkFiles(dir string, do func(path string, st *syscall.Stat_t)) {
	count := 0
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // gone or closed to us: not ours to report
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
