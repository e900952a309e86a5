package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// watchMask is what the kernel tells of a directory.
	watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	// pairTimeout is how long the second half of a renaming may take: the kernel writes both at once, but a read may end between them.
	pairTimeout = 20 * time.Millisecond
	// readBytes is how much is read at once.
	readBytes = 64 << 10
)

// watchedTree is a directory, and with recursive all directories below it, that the kernel watches. read is its only goroutine, but for the start.
type watchedTree struct {
	file      *os.File
	top       string
	only      string // the name in top that is meant; empty: all
	recursive bool
	ignore    []string
	tell      func(agent.FileEvent)

	dirs  map[int32]string
	paths map[string]int32
	limit int

	half   agent.FileEvent // the first half of a renaming; no path: there is none
	cookie uint32
}

// errTooMany says that a tree has more directories than are watched.
var errTooMany = errors.New("too many directories")

// start begins to watch.
func (t *watchedTree) start() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	t.file = os.NewFile(uintptr(fd), "inotify") //nolint:gosec // a descriptor is small
	t.dirs, t.paths = map[int32]string{}, map[string]int32{}
	if err := t.add(t.top, nil); err != nil {
		_ = t.file.Close()
		return err
	}
	return nil
}

// add watches a directory and what is below it. found is called for what is in it; nil: for nothing.
func (t *watchedTree) add(dir string, found func(string, fs.FileMode)) error {
	if len(t.dirs) >= t.limit {
		return errTooMany
	}
	var wd int
	var err error
	if raw, errRaw := t.file.SyscallConn(); errRaw != nil {
		return errRaw
	} else if errRaw = raw.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), dir, watchMask) }); errRaw != nil { //nolint:gosec // a descriptor is small
		return errRaw
	}
	if errors.Is(err, unix.ENOSPC) { // the kernel's limit for the user
		return errTooMany
	}
	if err != nil {
		return &os.PathError{Op: "watch", Path: dir, Err: err}
	}
	if before, known := t.dirs[int32(wd)]; known && before != dir { //nolint:gosec // the kernel's numbers have 32 bits
		delete(t.paths, before)
	}
	t.dirs[int32(wd)], t.paths[dir] = dir, int32(wd) //nolint:gosec // the kernel's numbers have 32 bits
	if !t.recursive && found == nil {
		return nil
	}
	names, err := namesIn(dir)
	if err != nil {
		return nil // it vanished, or cannot be listed
	}
	for _, name := range names {
		if t.ignored(name) {
			continue
		}
		full := filepath.Join(dir, name)
		info, err := os.Lstat(full)
		if err != nil {
			continue
		}
		if found != nil {
			found(full, info.Mode())
		}
		if t.recursive && info.IsDir() && !isVirtual(full) {
			if err := t.add(full, found); errors.Is(err, errTooMany) {
				return err
			}
		}
	}
	return nil
}

// ignored reports whether changes of a name are not reported.
func (t *watchedTree) ignored(name string) bool {
	if name == stagingDir || !utf8.ValidString(name) {
		return true
	}
	for _, pattern := range t.ignore {
		if match, _ := filepath.Match(pattern, name); match {
			return true
		}
	}
	return false
}

// read tells of changes until the file is closed.
func (t *watchedTree) read() {
	buf := make([]byte, readBytes)
	for {
		deadline := time.Time{}
		if t.half.Path != "" {
			deadline = time.Now().Add(pairTimeout)
		}
		_ = t.file.SetReadDeadline(deadline)
		n, err := t.file.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.single()
			continue
		case err != nil:
			return
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at])) //nolint:gosec // the kernel's form, and aligned by it
			end := at + unix.SizeofInotifyEvent + int(e.Len)
			name := strings.TrimRight(string(buf[at+unix.SizeofInotifyEvent:end]), "\x00")
			t.event(e.Wd, e.Mask, e.Cookie, name)
			at = end
		}
	}
}

// single tells of the first half of a renaming that has no second: it went out of the tree.
func (t *watchedTree) single() {
	if t.half.Path == "" {
		return
	}
	e := t.half
	t.half = agent.FileEvent{}
	if e.Type == "dir" {
		t.forget(e.Path)
	}
	e.Kind = agent.FileRemoved
	t.tell(e)
}

// event takes one event of the kernel.
func (t *watchedTree) event(wd int32, mask, cookie uint32, name string) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		t.single()
		t.tell(agent.FileEvent{Kind: agent.FileDropped, Reason: "the kernel's queue was full"})
		return
	}
	dir, known := t.dirs[wd]
	if !known {
		return
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(t.dirs, wd)
		if t.paths[dir] == wd {
			delete(t.paths, dir)
		}
		return
	}
	if name == "" {
		if dir == t.top && mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 {
			t.single()
			t.tell(agent.FileEvent{Kind: agent.FileRemoved, Path: dir, Type: "dir"})
		}
		return
	}
	full := filepath.Join(dir, name)
	e := agent.FileEvent{Path: full, Type: "file"}
	if mask&unix.IN_ISDIR != 0 {
		e.Type = "dir"
	}
	reported := !t.ignored(name) && (t.only == "" || name == t.only && dir == t.top)
	if t.half.Path != "" && (mask&unix.IN_MOVED_TO == 0 || cookie != t.cookie) {
		t.single()
	}
	switch {
	case mask&unix.IN_MOVED_FROM != 0:
		if reported {
			t.half, t.cookie = e, cookie
		}
	case mask&unix.IN_MOVED_TO != 0:
		from := t.half.Path
		t.half = agent.FileEvent{}
		switch {
		case !reported && from != "": // renamed to a name that is not reported
			t.half = agent.FileEvent{Path: from, Type: e.Type}
			t.single()
		case !reported:
		case from != "":
			e.Kind, e.From = agent.FileRenamed, from
			t.tell(e)
			if e.Type == "dir" {
				t.renamed(from, full)
			}
		default:
			t.created(e)
		}
	case !reported:
	case mask&unix.IN_CREATE != 0:
		t.created(e)
	case mask&unix.IN_DELETE != 0:
		e.Kind = agent.FileRemoved
		t.tell(e)
	case mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE|unix.IN_ATTRIB) != 0:
		e.Kind, e.Metadata = agent.FileChanged, mask&unix.IN_ATTRIB != 0
		t.tell(e)
	}
}

// created tells of something new, and of what is in it: that may have been made before the kernel watched it.
func (t *watchedTree) created(e agent.FileEvent) {
	e.Kind = agent.FileCreated
	t.tell(e)
	if e.Type == "dir" {
		t.found(e.Path)
	}
}

// found watches a directory that was not watched, and tells of what is in it.
func (t *watchedTree) found(dir string) {
	if !t.recursive || isVirtual(dir) {
		return
	}
	err := t.add(dir, func(p string, mode fs.FileMode) {
		kind := "file"
		if mode.IsDir() {
			kind = "dir"
		}
		t.tell(agent.FileEvent{Kind: agent.FileCreated, Path: p, Type: kind})
	})
	if errors.Is(err, errTooMany) {
		t.tell(agent.FileEvent{Kind: agent.FileDropped, Reason: tooMany(t.limit)})
	}
}

// renamed gives a directory that is watched, and those below it, their new paths. One that was renamed before the kernel watched it is watched
// now.
func (t *watchedTree) renamed(from, to string) {
	if _, known := t.paths[from]; !known {
		t.found(to)
		return
	}
	for p, wd := range t.paths {
		if rest, ok := strings.CutPrefix(p, from); ok && (rest == "" || rest[0] == '/') {
			delete(t.paths, p)
			t.dirs[wd] = to + rest
		}
	}
	for wd, p := range t.dirs {
		t.paths[p] = wd
	}
}

// forget ends the watching of a directory that went out of the tree, and of those below it.
func (t *watchedTree) forget(dir string) {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return
	}
	for p, wd := range t.paths {
		if rest, ok := strings.CutPrefix(p, dir); ok && (rest == "" || rest[0] == '/') {
			_ = raw.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) }) //nolint:gosec // the kernel's numbers
		}
	}
}

func tooMany(limit int) string {
	return farm.MessageOf(farm.Errorf(farm.CodeTooLarge, "the tree has more than %d directories, or more than the kernel watches for one user; those beyond are not watched", limit))
}
