package files

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// tarBlock is what the members of a tar are padded to.
const tarBlock = 512

// position is where the next piece of a tar begins.
type position struct {
	After  string `json:"a"`           // the last path whose header is written
	Size   int64  `json:"s,omitempty"` // bytes that the header has announced, and Offset how many of them are written
	Offset int64  `json:"o,omitempty"`
}

// packer writes a tar of what is under a directory, or a piece of one, with paths relative to it.
type packer struct {
	pages
	out     io.Writer
	plain   bool  // regular files and directories only, and of their modes what permits something to someone; else symbolic links, too
	limit   int64 // bytes of a file; a larger one is left out
	room    int64 // bytes of the piece, about: what begins before is written
	written int64
	at      position
}

// Write counts what is written.
func (k *packer) Write(b []byte) (int, error) {
	n, err := k.out.Write(b)
	k.written += int64(n)
	return n, err
}

// pack writes from the position on. more says that the piece is full, and at where the next one begins. The end of the tar is not written.
func (k *packer) pack() (more bool, err error) {
	if err := k.rest(nil); err != nil {
		return errors.Is(err, fs.SkipAll), ignoreFull(err)
	}
	k.after = k.at.After
	return k.each(func(full string, f found) error {
		if k.written >= k.room {
			return fs.SkipAll
		}
		return k.member(full, f)
	})
}

func ignoreFull(err error) error {
	if errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

// member packs one member, as far as it fits. What cannot be opened is left out.
func (k *packer) member(full string, f found) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: int64(f.st.Mode & farm.MaxMode), ModTime: f.modTime(), Format: tar.FormatPAX}
	if k.plain {
		h.Mode = int64(f.perm())
	}
	var content *os.File
	switch {
	case f.isDir():
		if h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"; k.plain {
			h.Mode = newDir
		}
	case f.isLink() && !k.plain:
		target, err := f.dir.readlink(f.name)
		if err != nil || !utf8.ValidString(target) {
			k.passed++
			return nil
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case !f.isRegular():
		k.passed++
		return nil
	default:
		opened, of, err := f.dir.regularAt(f.name, unix.O_RDONLY, 0)
		if err != nil {
			k.pass(err)
			return nil
		}
		defer func() { _ = opened.Close() }()
		if content, h.Size = opened, of.st.Size; h.Size > k.limit {
			k.passed++
			return nil
		}
	}
	if err := tar.NewWriter(k).WriteHeader(h); err != nil {
		return err
	}
	k.at = position{After: full, Size: h.Size}
	k.took()
	return k.rest(content)
}

// rest packs what is left of the file at the position; nil: it is opened again. Where it has shrunk or is gone there are zeros, since its header
// has announced its size.
func (k *packer) rest(f *os.File) error {
	if k.at.Offset == k.at.Size {
		return nil
	}
	if k.written >= k.room {
		return fs.SkipAll
	}
	if f == nil {
		_ = in(k.root, k.at.After, false, false, func(dir tree, name string) (err error) {
			f, _, err = dir.regularAt(name, unix.O_RDONLY, 0)
			return err
		})
		defer func() { _ = f.Close() }()
	}
	n := min(k.at.Size-k.at.Offset, k.room-k.written)
	var content io.Reader = zeros{}
	if f != nil {
		content = io.MultiReader(io.NewSectionReader(f, k.at.Offset, n), zeros{})
	}
	if _, err := io.CopyN(k, content, n); err != nil {
		return err
	}
	if k.at.Offset += n; k.at.Offset < k.at.Size {
		return fs.SkipAll
	}
	if odd := k.at.Size % tarBlock; odd != 0 {
		_, err := io.CopyN(k, zeros{}, tarBlock-odd)
		return err
	}
	return nil
}

// zeros is an infinite reader of zero bytes.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// pack sends a piece of the tar of a directory: its regular files, directories and symbolic links.
func (s *Server) pack(w http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	limit, err := number(r, "max_file_bytes", math.MaxInt64)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	k := packer{pages: pages{root: anywhere{}, base: p, stop: r.Context().Err}, out: &out, limit: limit, room: agent.PieceBytes}
	if next := r.URL.Query().Get("next"); next != "" {
		raw, err := base64.RawURLEncoding.DecodeString(next)
		if err == nil {
			err = json.Unmarshal(raw, &k.at)
		}
		if err != nil || k.at.Offset < 0 || k.at.Size < k.at.Offset {
			return nil, farm.Invalidf("next is none that was returned")
		}
	}
	more, err := k.pack()
	if err != nil {
		return nil, Problem(err, p)
	}
	piece := agent.PackPiece{Length: int64(out.Len()), LeftOut: k.leftOut}
	if more {
		raw, err := json.Marshal(k.at)
		if err != nil {
			return nil, err
		}
		piece.Next = base64.RawURLEncoding.EncodeToString(raw)
	}
	return nil, sendPiece(w, piece, &out, piece.Length)
}

// sendPiece sends a line with the description of a piece of content, and the piece.
func sendPiece(w http.ResponseWriter, head any, content io.Reader, length int64) error {
	raw, err := json.Marshal(head)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", agent.FramesType)
	w.WriteHeader(http.StatusOK)
	if _, err = w.Write(append(raw, '\n')); err == nil {
		_, err = io.CopyN(w, content, length) // it may have shrunk, or the reader may have left
	}
	if err != nil {
		return errBroken
	}
	return nil
}

// shownName bounds a name of an archive in an error.
const shownName = 80

// unpacker is the unpacking of an archive: first into a staging directory, then into its place once all of it is valid.
type unpacker struct {
	to    string          // target directory, relative to the tree that it must stay in
	stage tree            // the staging directory
	links map[string]bool // symbolic links of the archive
}

// unpack unpacks a tar archive under a directory of a tree, entirely or not at all. placed is called for each file and link in its place; nil: it is
// of no interest, and a file replaces a link to a directory.
func unpack(top tree, p string, r io.Reader, placed func(p string) error) error {
	if of, err := stat(top, p, true); err == nil && !of.isDir() {
		return farm.Conflictf("%s exists and is not a directory", p)
	}
	staged, done, err := top.stageDir()
	if err != nil {
		return err
	}
	defer done()
	u := &unpacker{to: p, stage: staged, links: map[string]bool{}}
	if err := u.all(r); err != nil {
		return err
	}
	return merge(staged, top, p, placed)
}

// all unpacks every member into the stage.
func (u *unpacker) all(r io.Reader) error {
	source := newSource(r)
	reader := tar.NewReader(source)
	for {
		h, err := reader.Next()
		switch {
		case errors.Is(err, io.EOF) && source.n == 0:
			return farm.Invalidf("the body is empty: a tar archive is expected")
		case errors.Is(err, io.EOF):
			return nil
		case source.err != nil:
			return source.or(nil)
		case err != nil:
			return farm.Wrap(err, farm.CodeInvalid, "the body is not a valid uncompressed tar archive")
		}
		if err := u.member(h, reader); err != nil {
			if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
				return farm.Wrap(err, farm.CodeInvalid, "the tar archive is incomplete")
			}
			return Problem(err, execution.Cut(h.Name, shownName))
		}
	}
}

// member checks and unpacks one member.
func (u *unpacker) member(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if strings.HasPrefix(h.Name, "/") {
		return farm.Invalidf("the tar archive contains the absolute name %q", execution.Cut(h.Name, shownName))
	}
	name, err := farm.CleanPath(h.Name)
	if err != nil {
		return err
	}
	if _, err := cleanPath(path.Join(u.to, name)); err != nil {
		return err
	}
	for dir := name; dir != "."; dir = path.Dir(dir) {
		if u.links[dir] {
			return farm.Invalidf("the tar archive writes through its own symbolic link %q", execution.Cut(dir, shownName))
		}
	}
	if name == "." && h.Typeflag != tar.TypeDir {
		return farm.Invalidf("the tar archive contains a file without a name")
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return mkdirAll(u.stage, name)
	case tar.TypeReg:
		return u.file(name, h, r)
	case tar.TypeSymlink:
		return u.link(name, h.Linkname)
	}
	return farm.Invalidf("the tar archive contains %q, which is neither a file, a directory nor a symbolic link", execution.Cut(h.Name, shownName))
}

func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	var f *os.File
	if err := in(u.stage, name, false, true, func(dir tree, name string) (err error) {
		_ = unix.Unlinkat(dir.fd, name, 0) // the last member with a name wins
		f, err = dir.openAt(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	}); err != nil {
		return err
	}
	mode := uint32(newFile)
	if h.Mode&0o111 != 0 {
		mode = newDir // executable
	}
	return fill(f, mode, r)
}

// link creates a symbolic link. merge finds out where its ".." lead, so they stand before all names: a name may be a link, too.
func (u *unpacker) link(name, target string) error {
	_, below := upwards(target)
	if slices.Contains(below, "..") || path.IsAbs(target) && !strings.HasPrefix(path.Clean(target), farm.Workspace+"/") {
		return leadsOut(name)
	}
	if target == "" || strings.ContainsRune(target, 0) {
		return farm.Invalidf("the symbolic link %q in the tar archive has no valid target", execution.Cut(name, shownName))
	}
	u.links[name] = true
	return in(u.stage, name, false, true, func(dir tree, name string) error { return unix.Symlinkat(target, dir.fd, name) })
}

// upwards returns how many ".." the target of a link begins with, and the elements after them. An absolute target begins with none.
func upwards(target string) (up int, below []string) {
	below = elements(target)
	for !path.IsAbs(target) && up < len(below) && below[up] == ".." {
		up++
	}
	return up, below[up:]
}

func leadsOut(name string) error {
	return farm.Invalidf("the symbolic link %q in the tar archive leads out of the workspace, or up (..) after a name", execution.Cut(name, shownName))
}

// above checks that a directory, which may not exist yet, has that many directories above it in the tree. It refuses what it cannot find out, and links to
// what does not exist on the way: merge creates that, wherever it is.
func above(top tree, dir string, up int) error {
	for ; up > 0; dir, up = path.Dir(dir), up-1 {
		if _, err := stat(top, dir+strings.Repeat("/..", up), true); !errors.Is(err, unix.ENOENT) {
			return err
		}
		if of, err := stat(top, dir, false); err == nil && of.isLink() {
			return errEscapes
		}
	}
	return nil
}

// merge moves what is staged into place: directories are merged, files replace files. If anything conflicts, it moves nothing.
func merge(staged, top tree, to string, placed func(p string) error) error {
	var dirs, others []string
	err := walk(staged, ".", false, func(f found, err error) error {
		if err != nil { // it vanished
			return nil
		}
		target := path.Join(to, f.path)
		if f.isLink() {
			leads, err := f.dir.readlink(f.name)
			if err != nil {
				return err
			}
			up, _ := upwards(leads)
			switch err := above(top, path.Dir(target), up); {
			case errors.Is(err, errEscapes):
				return leadsOut(target)
			case err != nil:
				return Problem(err, target)
			}
		}
		old, err := stat(top, target, placed != nil && !f.isDir())
		switch {
		case f.isDir():
			if err == nil && !old.isDir() {
				real, err := stat(top, target, true)
				switch {
				case errors.Is(err, errEscapes):
					return Problem(err, target)
				case err != nil || !real.isDir():
					return farm.Conflictf("%s exists and is not a directory", execution.Cut(target, shownName))
				}
			}
			dirs = append(dirs, f.path)
		case err == nil && old.isDir():
			return farm.Conflictf("%s exists and is a directory", execution.Cut(target, shownName))
		default:
			others = append(others, f.path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range append([]string{"."}, dirs...) {
		if err := mkdirAll(top, path.Join(to, name)); err != nil {
			return Problem(err, path.Join(to, name))
		}
	}
	for _, name := range others {
		err := rename(staged, name, top, path.Join(to, name))
		if err == nil && placed != nil {
			err = placed(path.Join(to, name))
		}
		if err != nil {
			return Problem(err, path.Join(to, name))
		}
	}
	return nil
}
