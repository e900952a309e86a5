package verbs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// progressEvery is the time between two lines about a copy that takes long.
	progressEvery = 5 * time.Second
	// maxCopyBytes and maxCopyFiles bound what one copy takes out of a sandbox, which can claim to have files of any size.
	maxCopyBytes = 64 << 30
	maxCopyFiles = 1_000_000
)

// copyBounded copies one file out of a sandbox, and nothing of one that says that it is too large.
func copyBounded(to io.Writer, content io.Reader) (n int64, err error) {
	known, ok := content.(*client.Content)
	tooLarge := ok && known.Size > maxCopyBytes
	if !tooLarge {
		n, err = io.Copy(to, io.LimitReader(content, maxCopyBytes+1))
	}
	if err == nil && (tooLarge || n > maxCopyBytes) {
		err = fmt.Errorf("it has more than %s, which is more than one copy takes", size(maxCopyBytes))
	}
	return n, err
}

// place is a path here, or in a sandbox.
type place struct {
	sandbox string // empty: here
	path    string
}

// placeOf reads ID:PATH. Anything else is a path here.
func placeOf(arg string) place {
	id, path, ok := strings.Cut(arg, ":")
	if !ok || !strings.HasPrefix(id, "sbx_") || strings.ContainsAny(id, `/\`) {
		return place{path: arg}
	}
	return place{sandbox: id, path: path}
}

func (a *app) cp() *cobra.Command {
	var recursive bool
	c := a.verb(&cobra.Command{
		Use: "cp [-r] SRC… DEST", Short: "Copy files between here and a sandbox", SuggestFor: []string{"upload", "download"},
		Long: `Copy files, or with -r directories, into a sandbox or out of it. Either every SRC or DEST is ID:PATH; PATH is absolute, or relative to the workspace.

As with cp, a DEST that is a directory, or ends in a slash, gets the copy inside it, and so does that of several SRC. Into a sandbox, files are replaced. Out of it nothing here is
overwritten: a file whose name is taken is called name-1. Links are neither followed nor copied. Of a directory out of a sandbox, files that other
programs load by name (hidden files, Makefile, conftest.py and the like) are named and left behind, since its code chose their names.`,
		Example: `  sandfarm cp data.csv sbx_…:in/
  sandfarm cp a.csv b.csv sbx_…:in
  sandfarm cp -r ./project sbx_…:/workspace/
  sandfarm cp -r sbx_…:/tmp/results ./results`,
		ValidArgsFunction: a.places,
	}, argCount(2, -1, "SRC or DEST"), func(ctx context.Context, c *client.Client, args []string) error {
		last := len(args) - 1
		to := placeOf(args[last])
		for _, arg := range args[:last] {
			switch from := placeOf(arg); {
			case from.sandbox == "" && to.sandbox == "":
				return usagef("neither SRC nor DEST is in a sandbox: write it as ID:PATH, such as sbx_…:data.csv")
			case from.sandbox != "" && to.sandbox != "":
				return usagef("both SRC and DEST are in sandboxes: copy to this machine first")
			}
		}
		if last > 1 && to.path != "" && to.path != "-" {
			to.path = strings.TrimRight(to.path, "/") + "/" // a directory
		}
		var errs []error
		for _, arg := range args[:last] {
			var err error
			if to.sandbox != "" {
				err = a.copyIn(ctx, c.FS(to.sandbox), arg, to.path, recursive)
			} else {
				err = a.copyTree(ctx, c, placeOf(arg), to.path, recursive)
			}
			if errs = append(errs, err); ctx.Err() != nil {
				break
			}
		}
		return errors.Join(errs...)
	})
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy a directory with all that is in it")
	return c
}

// copyIn copies a file or a directory into a sandbox.
func (a *app) copyIn(ctx context.Context, files *client.FS, from, to string, recursive bool) error {
	info, err := os.Stat(from)
	if err != nil {
		return unreadable(from, err)
	}
	if info.IsDir() && !recursive {
		return usagef("%s is a directory: add -r", from)
	}
	whole, err := filepath.Abs(from)
	if err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	if there, err := files.Stat(ctx, to); to == "" || strings.HasSuffix(to, "/") || err == nil && there.Type == "dir" {
		to = path.Join(client.Absolute(to), filepath.Base(whole))
	}
	progress := a.progress()
	if info.IsDir() {
		root, err := os.OpenRoot(from)
		if err != nil {
			return fmt.Errorf("read directory: %w", err)
		}
		defer root.Close()
		err = sendTar(from, func(w io.Writer) error { return pack(w, root, ".", progress) }, func(r io.Reader) error { return files.PutTar(ctx, to, r) })
		if err != nil {
			return err
		}
	} else {
		file, err := os.Open(from) //nolint:gosec // the user names it
		if err != nil {
			return unreadable(from, err)
		}
		defer file.Close()
		if _, err := files.Write(ctx, to, progress.reader(file), client.WriteIf{}); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.Err, "copied to %s (%s)\n", printable(to), size(progress.bytes))
	return nil
}

// sendTar sends what fill writes. An error of fill aborts the upload, so that half a tree does not count as the whole.
func sendTar(from string, fill func(io.Writer) error, send func(io.Reader) error) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := fill(w)
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err := send(r)
	_ = r.Close()
	if made := <-packed; made != nil && !errors.Is(made, io.ErrClosedPipe) {
		return fmt.Errorf("pack %s: %w", from, made)
	}
	return err
}

// copyTree copies a file or a directory out of a sandbox.
func (a *app) copyTree(ctx context.Context, c *client.Client, from place, to string, recursive bool) error {
	files := c.FS(from.sandbox)
	entry, err := files.Stat(ctx, from.path)
	if err != nil {
		return err
	}
	if entry.Type != "dir" {
		return a.copyOut(c, to, fileName{text: path.Base(entry.Path)}, func() (io.ReadCloser, error) { return files.Open(ctx, from.path) })
	}
	if !recursive {
		return usagef("%s is a directory: add -r", client.Absolute(from.path))
	}
	if info, err := os.Stat(to); err == nil && info.IsDir() || strings.HasSuffix(to, "/") {
		name, err := localName(path.Base(entry.Path), runtime.GOOS)
		if err != nil {
			return err
		}
		to = filepath.Join(to, name)
	}
	content, err := files.Tar(ctx, from.path)
	if err != nil {
		return err
	}
	defer content.Close()
	s, err := a.newSaver(c, to)
	if err != nil {
		return err
	}
	defer s.close()
	progress := a.progress()
	t := treeSaver{saver: s, progress: progress, from: from}
	t.say = s.say
	s.say = t.saved
	err = t.all(progress.reader(content))
	fmt.Fprintf(a.Err, "copied %s (%s) to %s\n", farm.Plural(t.files, "file"), size(t.bytes), printable(to))
	if t.links > 0 {
		fmt.Fprintf(a.Err, "not copied: %s\n", farm.Plural(t.links, "symbolic link"))
	}
	if t.held > maxNotSaved {
		fmt.Fprintf(a.Err, "not copied: %s like these. To get them, and to send what is only here: sandfarm sync --once --trust %s %s\n",
			farm.Plural(t.held-maxNotSaved, "more file"), quoteOne(to), quoteOne(from.sandbox+":"+client.Absolute(from.path)))
	}
	if n := content.LeftOut(); n > 0 {
		fmt.Fprintf(a.Err, "not copied: %s or directories that the sandbox's user cannot read, special files, names that are not UTF-8, or files that are too large\n", farm.Plural(n, "file"))
	}
	return err
}

// treeSaver saves the members of a tar whose names a sandbox chose.
type treeSaver struct {
	*saver
	progress           *progress
	say                func(string, ...any)
	from               place
	files, held, links int
	bytes              int64 // of the files
}

// saved says only that a file has another name than it should.
func (t *treeSaver) saved(format string, args ...any) {
	if strings.Contains(format, "another file") {
		t.say(format, args...)
	}
}

func (t *treeSaver) all(content io.Reader) error {
	from := tar.NewReader(content)
	var failures []error
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, content) // the trailer follows the last byte
			return errors.Join(append(failures, err)...)
		}
		if err != nil {
			return errors.Join(append(failures, fmt.Errorf("read the copy: %w", err))...)
		}
		if t.progress.bytes > maxCopyBytes || t.files >= maxCopyFiles {
			return fmt.Errorf("the directory has more than %s or %d files: copy a part of it", size(maxCopyBytes), maxCopyFiles)
		}
		if err := t.member(h, from); err != nil {
			failures = append(failures, fmt.Errorf("save %s: %w", cell(h.Name), err))
		}
		if len(failures) > maxNotSaved {
			return errors.Join(failures...)
		}
	}
}

func (t *treeSaver) member(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeSymlink {
		t.links++
		return nil
	}
	name, err := localName(strings.TrimSuffix(h.Name, "/"), runtime.GOOS)
	if err != nil {
		return err
	}
	if reason := t.autoload.Reason(t.root, name); reason != "" {
		if h.Typeflag == tar.TypeReg {
			if t.held++; t.held <= maxNotSaved {
				at := path.Join(client.Absolute(t.from.path), h.Name) //nolint:gosec // a path in the sandbox, which is shown only
				t.say("not copied: %s (%s). To get it: sandfarm cp %s %s", name, reason, quoteOne(t.from.sandbox+":"+at), quoteOne(t.shown(name)))
			}
		}
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return t.root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		if h.Size > maxCopyBytes-t.bytes { // the holes of sparse files are not in what progress counts
			return fmt.Errorf("it has %s, with the files before it more than one copy takes", size(h.Size))
		}
		t.files, t.bytes = t.files+1, t.bytes+h.Size
		return t.save(name, "", func() (io.ReadCloser, error) { return io.NopCloser(content), nil })
	}
	return nil
}

// progress counts what is copied, and prints a line now and then.
type progress struct {
	out   io.Writer
	bytes int64
	next  time.Time
}

func (a *app) progress() *progress { return &progress{out: a.Err, next: time.Now().Add(progressEvery)} }

func (p *progress) add(n int) {
	p.bytes += int64(n)
	if now := time.Now(); now.After(p.next) {
		p.next = now.Add(progressEvery)
		fmt.Fprintf(p.out, "%s so far\n", size(p.bytes))
	}
}

// reader counts what is read.
func (p *progress) reader(r io.Reader) io.Reader { return countedReader{r, p} }

// writer counts what is written.
func (p *progress) writer(w io.Writer) io.Writer { return countedWriter{w, p} }

type countedReader struct {
	r io.Reader
	p *progress
}

func (c countedReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.p.add(n)
	return n, err
}

type countedWriter struct {
	w io.Writer
	p *progress
}

func (c countedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.p.add(n)
	return n, err
}
