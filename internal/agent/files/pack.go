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
	"path/filepath"
	"strconv"
	"strings"
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

// pack sends a piece of the tar of a directory: its regular files, directories and symbolic links, with paths relative to it.
func (s *Server) pack(w http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	var from position
	if next := r.URL.Query().Get("next"); next != "" {
		raw, err := base64.RawURLEncoding.DecodeString(next)
		if err == nil {
			err = json.Unmarshal(raw, &from)
		}
		if err != nil || from.Offset < 0 || from.Size < from.Offset {
			return nil, farm.Invalidf("next is none that was returned")
		}
	}
	most, err := number(r, "max_file_bytes", math.MaxInt64)
	if err != nil {
		return nil, err
	}
	names, err := namesIn(p)
	if err != nil {
		return nil, problem(err, p)
	}
	k := packer{r: r, top: p, most: most, at: from, inside: isVirtual(p)}
	err = k.rest()
	if err == nil {
		err = k.visit(p, names, farm.MaxFSDepth)
	}
	var piece agent.PackPiece
	switch {
	case errors.Is(err, fs.SkipAll):
		raw, err := json.Marshal(k.at)
		if err != nil {
			return nil, err
		}
		piece.Next = base64.RawURLEncoding.EncodeToString(raw)
	case err != nil:
		return nil, problem(err, p)
	}
	if piece.LeftOut = k.leftOut; piece.Next == "" {
		piece.LeftOut += k.passed
	}
	piece.Length = int64(k.out.Len())
	raw, err := json.Marshal(piece)
	if err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", agent.FramesType)
	w.WriteHeader(http.StatusOK)
	if _, err = w.Write(append(raw, '\n')); err == nil {
		_, err = w.Write(k.out.Bytes())
	}
	if err != nil {
		return nil, errBroken
	}
	return nil, nil
}

type packer struct {
	r      *http.Request
	top    string
	most   int64 // bytes of a file; a larger one is left out
	at     position
	inside bool
	out    bytes.Buffer

	passed  int // left out behind the last member; the next piece meets them again
	leftOut int // left out before the last member
}

// full reports whether the piece is.
func (k *packer) full() bool { return k.out.Len() >= agent.PieceBytes }

// visit packs what comes after the position in a directory; fs.SkipAll when the piece is full.
func (k *packer) visit(dir string, names []string, depth int) error {
	if err := k.r.Context().Err(); err != nil {
		return err
	}
	for _, name := range names {
		full := filepath.Join(dir, name)
		if isAside(name) {
			continue
		}
		seen := k.at.After != "" && !isAfter(full, k.at.After)
		if seen && full != k.at.After && !strings.HasPrefix(k.at.After, full+"/") {
			continue
		}
		if !utf8.ValidString(name) || len(full) > farm.MaxPathBytes {
			k.passed++
			continue
		}
		e, st, err := lstat(full)
		if err != nil {
			k.pass(err)
			continue
		}
		if !seen {
			if k.full() {
				return fs.SkipAll
			}
			if err := k.member(full, e, &st); err != nil {
				return err
			}
		}
		if !isDir(&st) || !k.inside && isVirtual(full) {
			continue
		}
		below, err := namesIn(full)
		if err != nil {
			k.pass(err)
			continue
		}
		if depth == 1 {
			k.passed += len(below)
			continue
		}
		if err := k.visit(full, below, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// pass counts what is left out for an error. What has vanished meanwhile is not missing.
func (k *packer) pass(err error) {
	if !errors.Is(err, os.ErrNotExist) {
		k.passed++
	}
}

// member packs one member, as far as it fits. What cannot be opened is left out.
func (k *packer) member(full string, e farm.FSEntry, st *unix.Stat_t) error {
	name, err := filepath.Rel(k.top, full)
	if err != nil {
		return err
	}
	mode, err := strconv.ParseInt(e.Mode, 8, 64)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: mode, ModTime: e.ModifiedAt, Format: tar.FormatPAX, Typeflag: tar.TypeReg, Size: e.Size}
	switch {
	case isDir(st):
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case e.Type == "symlink" && e.Target != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	case !isRegular(st):
		k.passed++
		return nil
	case e.Size > k.most:
		k.passed++
		return nil
	default:
		if err := unix.Access(full, unix.R_OK); err != nil {
			k.pass(err)
			return nil
		}
	}
	if err := tar.NewWriter(&k.out).WriteHeader(h); err != nil {
		return err
	}
	k.at = position{After: full, Size: h.Size}
	k.leftOut, k.passed = k.leftOut+k.passed, 0
	return k.rest()
}

// rest packs what is left of the file at the position: zeros where it has shrunk or is gone, since its header has announced its size.
func (k *packer) rest() error {
	if k.at.Offset == k.at.Size {
		return nil
	}
	if k.full() {
		return fs.SkipAll
	}
	n := min(k.at.Size-k.at.Offset, int64(agent.PieceBytes-k.out.Len()))
	var content io.Reader = zeros{}
	if f, _, err := open(k.at.After, unix.O_RDONLY, 0); err == nil {
		defer func() { _ = f.Close() }()
		content = io.MultiReader(io.NewSectionReader(f, k.at.Offset, n), zeros{})
	} else if !errors.Is(err, os.ErrNotExist) && k.at.Offset == 0 {
		return err
	}
	if _, err := io.CopyN(&k.out, content, n); err != nil {
		return err
	}
	if k.at.Offset += n; k.at.Offset < k.at.Size {
		return fs.SkipAll
	}
	if odd := k.at.Size % tarBlock; odd != 0 {
		_, _ = io.CopyN(&k.out, zeros{}, tarBlock-odd)
	}
	return nil
}
