package verbs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// syncDepth is how deep a tree may be.
	syncDepth = 1000
	// syncPart ends the name of a file here that is not complete.
	syncPart = ".sandfarm-part"
	// bulkFrom is the number of files that are sent as one tar.
	bulkFrom = 16
)

type syncOptions struct {
	deletes, trust bool
	memory         string // directory for what both sides had; empty: the user's cache directory
	ignore         []string
}

// syncer keeps a directory here and one in a sandbox the same.
type syncer struct {
	syncOptions
	files    *client.FS
	root     *os.Root
	there    string // absolute
	memory   string // file that remembers was
	say      func(string, ...any)
	said     bool // say was called
	autoload *Autoload

	was      map[string]pair
	remote   map[string]wire.FSEntry // as listed last
	differ   map[string]pair         // conflicts: versions that were compared
	reported map[string]string       // what was said of a file, so that it is said once
}

func (a *app) newSyncer(ctx context.Context, c *client.Client, dir string, to place, o syncOptions) (*syncer, error) {
	whole, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, unreadable(dir, err)
	}
	s := &syncer{
		syncOptions: o, files: c.FS(to.sandbox), root: root, there: path.Clean(client.Absolute(to.path)), was: map[string]pair{}, differ: map[string]pair{}, reported: map[string]string{},
		autoload: NewAutoload(runtime.GOOS, a.Getenv("PATH")),
	}
	s.say = func(format string, args ...any) {
		s.said = true
		a.sayLine(format, args...)
	}
	dirOf := func() (string, error) { return o.memory, nil }
	if o.memory == "" {
		dirOf = os.UserCacheDir
	}
	if cache, err := dirOf(); err == nil {
		sum := sha256.Sum256([]byte(c.URL() + "\x00" + to.sandbox + "\x00" + s.there + "\x00" + whole))
		s.memory = filepath.Join(cache, "sandfarm", "sync", hex.EncodeToString(sum[:16])+".json")
		if raw, err := os.ReadFile(s.memory); err == nil {
			_ = json.Unmarshal(raw, &s.was) // what cannot be read is compared anew
		}
	}
	if err := s.files.Mkdir(ctx, s.there); err != nil {
		_ = root.Close()
		return nil, err
	}
	return s, nil
}

func (s *syncer) close() { _ = s.root.Close() }

// remember keeps what both sides have.
func (s *syncer) remember() {
	raw, err := json.Marshal(s.was)
	if err == nil && s.memory != "" {
		if err = os.MkdirAll(filepath.Dir(s.memory), 0o700); err == nil {
			if err = os.WriteFile(s.memory+".new", raw, 0o600); err == nil {
				err = os.Rename(s.memory+".new", s.memory)
			}
		}
	}
	if err != nil {
		s.once1("", "cannot remember what both sides have: "+err.Error())
	}
}

// once1 says something of a file, unless it was the last thing said of it.
func (s *syncer) once1(name, text string) {
	if s.reported[name] != text {
		s.reported[name] = text
		s.say("%s", text)
	}
}

// ignored are the patterns of names that are left out.
func (s *syncer) ignored() []string {
	return append([]string{".git", ".sandfarm-*", "*" + syncPart}, s.ignore...)
}

// leavesOut reports whether a name, or a directory above it, is left out.
func (s *syncer) leavesOut(name string) bool {
	for element := range strings.SplitSeq(name, "/") {
		for _, pattern := range s.ignored() {
			if match, _ := filepath.Match(pattern, element); match {
				return true
			}
		}
	}
	return false
}

// list reads what the sandbox has.
func (s *syncer) list(ctx context.Context) error {
	entries, err := s.files.List(ctx, s.there, syncDepth)
	if err != nil {
		return err
	}
	s.remote = map[string]wire.FSEntry{}
	var bytes int64
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Path, strings.TrimSuffix(s.there, "/")+"/")
		if !ok || e.Type != "file" || s.leavesOut(name) {
			continue
		}
		if local, err := localName(name, runtime.GOOS); err != nil || local != name {
			s.once1(name, fmt.Sprintf("left out: %q is no name for a file here", name))
			continue
		}
		s.remote[name] = e
		if bytes += min(e.Size, maxCopyBytes+1); bytes > maxCopyBytes {
			return fmt.Errorf("the directory in the sandbox has more than %s: sync a part of it, or leave files out (--ignore)", size(maxCopyBytes))
		}
	}
	return nil
}

// look reads what is here.
func (s *syncer) look() (map[string]version, error) {
	here := map[string]version{}
	err := fs.WalkDir(s.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // it vanished
			return nil
		case err != nil:
			return err
		case name != "." && s.leavesOut(name):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !entry.Type().IsRegular():
			return nil
		}
		info, err := entry.Info()
		if err == nil {
			here[name] = localVersion(info)
		}
		return nil
	})
	return here, err
}

func localVersion(info fs.FileInfo) version {
	return version(fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano()))
}

// round makes both sides the same, and returns how many files are not.
func (s *syncer) round(ctx context.Context) (open int, err error) {
	here, err := s.look()
	if err != nil {
		return 0, fmt.Errorf("read directory: %w", err)
	}
	there := make(map[string]version, len(s.remote))
	for name, e := range s.remote {
		there[name] = version(e.ETag)
	}
	if s.deletes && len(s.was) > 0 && (len(here) == 0) != (len(there) == 0) {
		return 0, errors.New("one side has no files any more, so nothing was deleted on the other: delete them there yourself")
	}
	todo := slices.DeleteFunc(plans(here, there, s.was, s.deletes), s.kept)
	if len(todo) == 0 {
		return 0, nil
	}
	defer s.remember()
	if todo, err = s.bulk(ctx, todo, here); err != nil {
		return 0, err
	}
	for _, w := range todo {
		if err := s.do(ctx, w, here[w.name]); err != nil {
			if ctx.Err() != nil || temporaryError(err) {
				return 0, err
			}
			open++
			s.once1(w.name, err.Error())
		}
	}
	return open, nil
}

// kept says of a file that its deletion is not copied, if that is so.
func (s *syncer) kept(w work) bool {
	switch w.do {
	case keepThere:
		s.once1(w.name, w.name+" was deleted here and is still there (--delete deletes it)")
	case keepHere:
		s.once1(w.name, w.name+" was deleted there and is still here (--delete deletes it)")
	default:
		return false
	}
	return true
}

// bulk sends files that the sandbox does not have as one tar, and returns what is left to do.
func (s *syncer) bulk(ctx context.Context, todo []work, here map[string]version) ([]work, error) {
	var many, rest []work
	for _, w := range todo {
		if _, there := s.remote[w.name]; w.do == push && !there {
			many = append(many, w)
		} else {
			rest = append(rest, w)
		}
	}
	if len(many) < bulkFrom {
		return todo, nil
	}
	err := sendTar(s.root.Name(), func(w io.Writer) error { return packNames(w, s.root, many) }, func(r io.Reader) error { return s.files.PutTar(ctx, s.there, r) })
	if err != nil {
		return nil, err
	}
	if err := s.list(ctx); err != nil {
		return nil, err
	}
	for _, w := range many {
		info, err := s.root.Stat(w.name)
		if e, ok := s.remote[w.name]; ok && err == nil && localVersion(info) == here[w.name] && e.Size == info.Size() {
			s.was[w.name] = pair{here[w.name], version(e.ETag)}
		}
	}
	s.say("sent %s", farm.Plural(len(many), "file"))
	return rest, nil
}

// do does one step. An error says what of the file is not the same.
func (s *syncer) do(ctx context.Context, w work, here version) error {
	name, e := w.name, s.remote[w.name]
	switch w.do {
	case push:
		return s.push(ctx, name, here)
	case pull, dropHere:
		if reason := s.autoload.Reason(s.root, name); reason != "" && !s.trust {
			return fmt.Errorf("not %s: %s (%s). To let the sandbox change it: --trust", map[bool]string{true: "copied here", false: "deleted here"}[w.do == pull], name, reason)
		}
		if w.do == pull {
			return s.pull(ctx, name, here)
		}
		if err := s.root.Remove(name); err != nil {
			return fmt.Errorf("delete %s here: %w", name, err)
		}
		delete(s.was, name)
		s.say("deleted here: %s", name)
	case dropThere:
		if err := s.files.Remove(ctx, path.Join(s.there, name)); err != nil {
			return fmt.Errorf("delete %s there: %w", name, err)
		}
		delete(s.remote, name)
		delete(s.was, name)
		s.say("deleted there: %s", name)
	case compare:
		return s.compare(ctx, name, here, e)
	case leave, keepHere, keepThere:
	}
	return nil
}

// compare takes equal content for the common version. Other content is a conflict, which is read once.
func (s *syncer) compare(ctx context.Context, name string, here version, e wire.FSEntry) error {
	now := pair{here, version(e.ETag)}
	if s.differ[name] != now {
		same, err := s.same(ctx, name, e)
		if err != nil {
			return err
		}
		if same {
			s.was[name] = now
			return nil
		}
		s.differ[name] = now
	}
	if _, known := s.was[name]; known {
		return fmt.Errorf("conflict: %s changed on both sides. Delete one of them", name)
	}
	return fmt.Errorf("conflict: %s differs, and was never the same on both sides. Delete one of them", name)
}

// push sends one file, if the sandbox still has the version that is known.
func (s *syncer) push(ctx context.Context, name string, here version) error {
	file, err := s.root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it vanished
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	defer file.Close()
	how := client.WriteIf{New: true}
	if e, there := s.remote[name]; there {
		how = client.WriteIf{Match: e.ETag}
	} else if info, err := file.Stat(); err == nil {
		how.Mode = fmt.Sprintf("%04o", info.Mode().Perm()&0o755|0o600)
	}
	e, err := s.files.Write(ctx, path.Join(s.there, name), file, how)
	if err != nil {
		return fmt.Errorf("send %s: %w", name, err)
	}
	s.remote[name], s.was[name] = e, pair{here, version(e.ETag)}
	s.say("sent %s", name)
	return nil
}

// pull fetches one file, if it is still here what it was. It is written aside and renamed; what it replaces is never half written.
func (s *syncer) pull(ctx context.Context, name string, here version) error {
	content, err := s.files.Open(ctx, path.Join(s.there, name))
	if err != nil {
		return fmt.Errorf("fetch %s: %w", name, err)
	}
	defer content.Close()
	if dir := path.Dir(name); dir != "." {
		if err := s.root.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("fetch %s: %w", name, err)
		}
	}
	mode := fs.FileMode(0o644)
	if old, err := s.root.Stat(name); err == nil {
		mode = old.Mode().Perm()
	}
	part := name + syncPart
	if err := s.fill(part, mode, content); err != nil {
		return fmt.Errorf("fetch %s: %w", name, errors.Join(err, s.root.Remove(part)))
	}
	if info, err := s.root.Lstat(name); err == nil && (localVersion(info) != here || !info.Mode().IsRegular()) || err != nil && here != "" {
		_ = s.root.Remove(part)
		return fmt.Errorf("conflict: %s changed here while it was fetched", name)
	}
	if err := s.root.Rename(part, name); err != nil {
		return fmt.Errorf("fetch %s: %w", name, errors.Join(err, s.root.Remove(part)))
	}
	info, err := s.root.Stat(name)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", name, err)
	}
	e := s.remote[name]
	e.ETag = content.ETag
	s.remote[name], s.was[name] = e, pair{localVersion(info), version(content.ETag)}
	s.say("fetched %s (%s)", name, size(info.Size()))
	return nil
}

func (s *syncer) fill(part string, mode fs.FileMode, content *client.Content) error {
	_ = s.root.Remove(part) // of a sync that was ended
	file, err := s.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := copyBounded(file, content)
	if err == nil && content.Size >= 0 && n != content.Size {
		err = fmt.Errorf("%d bytes instead of %d", n, content.Size)
	}
	return errors.Join(err, file.Close())
}

// same reports whether a file has the same content on both sides.
func (s *syncer) same(ctx context.Context, name string, e wire.FSEntry) (bool, error) {
	info, err := s.root.Stat(name)
	if err != nil || info.Size() != e.Size {
		return false, nil // it vanished: the next round looks again
	}
	file, err := s.root.Open(name)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	defer file.Close()
	content, err := s.files.Open(ctx, path.Join(s.there, name))
	if err != nil {
		return false, fmt.Errorf("compare %s: %w", name, err)
	}
	defer content.Close()
	ours, theirs := sha256.New(), sha256.New()
	if _, err := io.Copy(ours, file); err != nil {
		return false, fmt.Errorf("compare %s: %w", name, err)
	}
	if _, err := io.Copy(theirs, content); err != nil {
		return false, fmt.Errorf("compare %s: %w", name, err)
	}
	return string(ours.Sum(nil)) == string(theirs.Sum(nil)) && content.ETag == e.ETag, nil
}
