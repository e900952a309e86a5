package verbs

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// saver saves the files that a run made into a directory. Their names come from the code that ran: a file never lands
// outside the directory, not even through a link in it, and no existing file is overwritten. Files that other programs
// load by name are not saved, see autoload.
type saver struct {
	c        *client.Client
	root     *os.Root
	say      func(format string, args ...any) // app.sayLine
	dir      string                           // as the user wrote it, for messages
	autoload *Autoload
}

// sayLine prints one line, in which code of a sandbox chose names.
func (a *app) sayLine(format string, args ...any) {
	fmt.Fprintln(a.Err, cell(fmt.Sprintf(format, args...)))
}

// newSaver opens the directory and creates it if it is missing.
func (a *app) newSaver(c *client.Client, dir string) (*saver, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // what is saved belongs to the user, as readable as files that the user creates
		return nil, fmt.Errorf("create directory for results: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory for results: %w", err)
	}
	return &saver{c: c, root: root, say: a.sayLine, dir: dir, autoload: NewAutoload(runtime.GOOS, a.Getenv("PATH"))}, nil
}

func (s *saver) close() { _ = s.root.Close() }

// maxNotSaved is how many files that were not saved get a line of their own. The rest are named together in one line.
const maxNotSaved = 10

// artifacts saves every artifact that is a file of the workspace. An error with one does not stop the others.
func (s *saver) artifacts(ctx context.Context, artifacts []wire.Artifact) error {
	var failures []error
	notSaved := 0
	var more []string // names of those beyond maxNotSaved
	for _, artifact := range artifacts {
		if strings.HasPrefix(artifact.Path, outputDir) {
			continue
		}
		name, err := localName(artifact.Path, runtime.GOOS)
		if err == nil {
			if reason := s.autoload.Reason(s.root, name); reason != "" {
				if notSaved++; notSaved <= maxNotSaved {
					s.say("not saved: %s (%s). To get it: sandfarm artifact get %s %s", name, reason, artifact.ID, quoteOne(s.shown(name)))
				} else {
					more = append(more, name)
				}
				continue
			}
			err = s.save(name, artifact.SHA256, func() (io.ReadCloser, error) { return s.c.Download(ctx, artifact) })
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("save %s: %w", cell(artifact.Path), err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(more) > 0 {
		s.say("not saved: %s: %s. For their IDs: sandfarm artifact ls --job %s --limit 0", farm.Plural(len(more), "more file"), strings.Join(more, ", "), artifacts[0].JobID)
	}
	return errors.Join(failures...)
}

// images saves the images that the code displayed without saving them, as stem-1.png and so on: one file for each displayed value,
// also if the value has several types.
func (s *saver) images(ctx context.Context, stem string, results []wire.Rich) error {
	endings := map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg", "image/gif": ".gif"}
	n := 0
	for _, value := range wire.Values(results) {
		result, ok := value.First("image/png", "image/jpeg", "image/gif", "image/svg+xml")
		if !ok {
			continue
		}
		ending := endings[result.Mime]
		n++
		open := func() (io.ReadCloser, error) { return s.c.Fetch(ctx, result.URL, 0) }
		sum := ""
		if result.Data != "" {
			data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(result.Data))
			if err != nil { // svg may come as text
				data = []byte(result.Data)
			}
			digest := sha256.Sum256(data)
			sum = hex.EncodeToString(digest[:])
			open = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(data))), nil }
		}
		if err := s.save(fmt.Sprintf("%s-%d%s", stem, n, ending), sum, open); err != nil {
			return fmt.Errorf("save a displayed image: %w", err)
		}
	}
	return nil
}

// maxNames bounds the search for a free name.
const maxNames = 10_000

// save writes content under the name, or under name-1, name-2 … if another file has that name. A file with the same
// content is left as it is.
func (s *saver) save(name, sum string, open func() (io.ReadCloser, error)) error {
	if dir := path.Dir(name); dir != "." {
		if err := s.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for n := range maxNames {
		at := numbered(name, n)
		file, err := s.root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			if s.same(at, sum) {
				s.say("kept %s (unchanged)", s.shown(at))
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		return s.fill(file, at, name, sum, open)
	}
	return fmt.Errorf("%d files of that name exist already", maxNames)
}

// fill writes the content into a new file, and removes the file if the content does not arrive complete, or a file before it of that name has it.
func (s *saver) fill(file *os.File, at, name, sum string, open func() (io.ReadCloser, error)) (err error) {
	kept := false
	defer func() {
		err = errors.Join(err, file.Close())
		if err != nil || kept {
			err = errors.Join(err, s.root.Remove(at))
		}
	}()
	content, err := open()
	if err != nil {
		return err
	}
	defer content.Close()
	digest := sha256.New()
	n, err := copyBounded(io.MultiWriter(file, digest), content)
	if err != nil {
		return err
	}
	got := hex.EncodeToString(digest.Sum(nil))
	if sum != "" && got != sum {
		return errors.New("the download differs from what the farm stored (checksum mismatch); try again")
	}
	for i := 0; sum == "" && numbered(name, i) != at; i++ { // with a checksum, save has looked
		if before := numbered(name, i); s.same(before, got) {
			kept = true
			s.say("kept %s (unchanged)", s.shown(before))
			return nil
		}
	}
	if at != name {
		s.say("saved %s (%s; %s is another file and was kept)", s.shown(at), size(n), s.shown(name))
		return nil
	}
	s.say("saved %s (%s)", s.shown(at), size(n))
	return nil
}

// same reports whether the file has this checksum.
func (s *saver) same(name, sum string) bool {
	info, err := s.root.Stat(name)
	if sum == "" || err != nil || !info.Mode().IsRegular() {
		return false
	}
	file, err := s.root.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	digest := sha256.New()
	_, err = io.Copy(digest, file)
	return err == nil && hex.EncodeToString(digest.Sum(nil)) == sum
}

func (s *saver) shown(name string) string {
	return printable(filepath.Join(s.dir, filepath.FromSlash(name)))
}

// numbered puts -n before the extension of a name; 0 leaves it as it is.
func numbered(name string, n int) string {
	if n == 0 {
		return name
	}
	dir, base := path.Split(name)
	ending := path.Ext(base)
	if ending == base { // .bashrc
		ending = ""
	}
	return fmt.Sprintf("%s%s-%d%s", dir, strings.TrimSuffix(base, ending), n, ending)
}
