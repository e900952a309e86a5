package files

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"io/fs"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxWalked bounds the files of a snapshot; further files are not compared.
const maxWalked = 200_000

// leftOut are the names of folders that hold what is installed, derived or cached, by the thousand. Files in them become no artifacts. docs/rest.md
// lists them.
var leftOut = []string{".cache", ".git", ".venv", compiled, "node_modules", "venv"}

// compiled is the name of folders where Python keeps compiled modules. Their files are not counted.
const compiled = "__pycache__"

// Snapshot is the state of a workspace at one time: a hash of the path of each regular file, with a hash of its lstat
// result. It takes 16 bytes per file, which keeps the agent small.
type Snapshot struct {
	of    *Workspace
	files map[uint64]uint64
}

// Snapshot records the state of the workspace.
func (w *Workspace) Snapshot() Snapshot {
	s := Snapshot{of: w, files: map[uint64]uint64{}}
	w.eachFile(func(path, _ string, st *unix.Stat_t) { s.files[maphash.String(w.seed, path)] = s.stamp(st) })
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
// long, or not UTF-8. Files in folders of leftOut are only counted, for each outermost one of them.
func (s Snapshot) Changes(maxFiles int, maxBytes int64) (files []agent.ChangedFile, skipped int, left []agent.LeftOut) {
	counts := map[string]int{}
	s.of.eachFile(func(path, folder string, st *unix.Stat_t) {
		if old, ok := s.files[maphash.String(s.of.seed, path)]; ok && old == s.stamp(st) {
			return
		}
		if folder != "" {
			if !strings.HasSuffix("/"+folder, "/"+compiled) { // each import makes some, and nobody wants them
				counts[folder]++
			}
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
		if size += farm.Quoted(files[keep].Path); size > agent.MaxPathsBytes {
			break
		}
		keep++
	}
	return files[:keep], skipped + len(files) - keep, maxLeftOut(counts)
}

// maxLeftOut names the folders with the most files, and counts those of the others together.
func maxLeftOut(counts map[string]int) []agent.LeftOut {
	var left []agent.LeftOut
	others := 0
	for folder, n := range counts {
		if clean, err := farm.CleanFilePath(folder); err != nil || clean != folder {
			others += n // no call could use its path
			continue
		}
		left = append(left, agent.LeftOut{Folder: folder, Files: n})
	}
	slices.SortFunc(left, func(a, b agent.LeftOut) int {
		return cmp.Or(cmp.Compare(b.Files, a.Files), cmp.Compare(a.Folder, b.Folder))
	})
	for len(left) > agent.MaxLeftOut {
		others += left[len(left)-1].Files
		left = left[:len(left)-1]
	}
	if others > 0 {
		left = append(left, agent.LeftOut{Files: others})
	}
	return left
}

// eachFile calls do for every regular file of the workspace, with the outermost folder of leftOut that it is in: at most maxWalked in such
// folders, and maxWalked outside. It skips files that vanish or cannot be read.
func (w *Workspace) eachFile(do func(path, folder string, st *unix.Stat_t)) {
	top, err := w.top()
	if err != nil {
		return
	}
	defer top.close()
	outside, inside, folder := 0, 0, ""
	_ = walk(top, ".", false, func(f found, err error) error {
		if folder != "" && !strings.HasPrefix(f.path, folder+"/") {
			folder = ""
		}
		switch {
		case err != nil:
		case f.isDir() && folder == "" && slices.Contains(leftOut, f.name):
			folder = f.path
		case f.isDir():
			return skipIf(folder != "" && inside >= maxWalked)
		case !f.isRegular():
		case folder == "":
			if outside++; outside > maxWalked {
				return fs.SkipAll
			}
			do(f.path, "", &f.st)
		case inside < maxWalked:
			inside++
			do(f.path, folder, &f.st)
		}
		return nil
	})
}
