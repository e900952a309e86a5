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
	"strings"
	"unicode"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// saver puts what a run made into a directory. The names come from the farm and so from the code that ran: they never
// lead outside the directory, through links in it neither, and no file that is there is ever overwritten. Hidden files stay
// behind, since other programs run what is in them: a .git/config that appears names a command for the next git status.
type saver struct {
	c    *client.Client
	root *os.Root
	say  func(format string, args ...any)
	dir  string // as the user wrote it, for messages
}

// newSaver opens the directory, which is made if it is not there.
func newSaver(c *client.Client, dir string, say func(string, ...any)) (*saver, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // what is saved is the user's own, as readable as what he makes
		return nil, fmt.Errorf("make directory for results: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory for results: %w", err)
	}
	return &saver{c: c, root: root, say: say, dir: dir}, nil
}

func (s *saver) close() { _ = s.root.Close() }

// artifacts saves every artifact that is a file of the workspace. What goes wrong with one does not stop the others.
func (s *saver) artifacts(ctx context.Context, artifacts []wire.Artifact) error {
	var failures []error
	for _, artifact := range artifacts {
		if strings.HasPrefix(artifact.Path, outputDir) {
			continue
		}
		if err := s.artifact(ctx, artifact); err != nil {
			failures = append(failures, fmt.Errorf("save %s: %w", artifact.Path, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failures...)
}

func (s *saver) artifact(ctx context.Context, artifact wire.Artifact) error {
	name, err := localName(artifact.Path)
	if err != nil {
		return err
	}
	if hidden(name) {
		s.say("left %s, which is hidden: sandfarm artifact get %s saves it", printable(name), printable(artifact.ID))
		return nil
	}
	open := func() (io.ReadCloser, error) { return s.c.Download(ctx, artifact) }
	return s.save(name, artifact.SHA256, open)
}

// images saves the images that were shown and not saved by the code, as stem-1.png and so on.
func (s *saver) images(ctx context.Context, stem string, results []wire.Rich) error {
	endings := map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg", "image/gif": ".gif"}
	n := 0
	for _, result := range results {
		ending, ok := endings[result.Mime]
		if !ok {
			continue
		}
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
			return fmt.Errorf("save a shown image: %w", err)
		}
	}
	return nil
}

// maxNames bounds the search for a name that is free.
const maxNames = 10_000

// save writes content under the name, or under name-1, name-2 … where another file has it. A file with the same content
// is left as it is.
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
	return fmt.Errorf("%d files of that name are there already", maxNames)
}

// fill writes the content into a new file, which is removed again when it does not come whole.
func (s *saver) fill(file *os.File, at, name, sum string, open func() (io.ReadCloser, error)) (err error) {
	defer func() {
		err = errors.Join(err, file.Close())
		if err != nil {
			err = errors.Join(err, s.root.Remove(at))
		}
	}()
	content, err := open()
	if err != nil {
		return err
	}
	defer content.Close()
	digest := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, digest), content)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); sum != "" && got != sum {
		return errors.New("what came is not what the farm stored (its checksum differs)")
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

// localName is the path of an artifact as a path below a directory here.
func localName(name string) (string, error) {
	name = strings.TrimPrefix(name, "/workspace/")
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\\' && filepath.Separator == '\\' {
			return '_'
		}
		return r
	}, name)
	if name == "" || strings.HasSuffix(name, "/") || !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) == "." {
		return "", errors.New("its name leads out of the directory, so it was not saved")
	}
	for element := range strings.SplitSeq(name, "/") {
		if element == ".." {
			return "", errors.New("its name leads out of the directory, so it was not saved")
		}
	}
	return path.Clean(name), nil
}

// hidden reports whether a name, or a directory in it, begins with a dot.
func hidden(name string) bool { return strings.HasPrefix(name, ".") || strings.Contains(name, "/.") }

// numbered puts -n before the ending of a name; 0 leaves it as it is.
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
