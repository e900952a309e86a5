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
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
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
	most    int64 // bytes of a file; a larger one is left out
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
		if content, h.Size = opened, of.st.Size; h.Size > k.most {
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
	most, err := number(r, "max_file_bytes", math.MaxInt64)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	k := packer{pages: pages{root: anywhere{}, base: p, stop: r.Context().Err}, out: &out, most: most, room: agent.PieceBytes}
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
