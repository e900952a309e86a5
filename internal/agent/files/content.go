package files

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// MaxVirtualBytes bounds what is read of a file whose size the kernel does not know, such as those in /proc.
const MaxVirtualBytes = agent.PieceBytes

// read sends a piece of a file, after a line with its description. The caller asks for the next piece with the inode of the first, so that
// the pieces of two files are never mixed.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	offset, err := number(r, "offset", 0)
	if err != nil {
		return nil, err
	}
	length, err := number(r, "length", agent.PieceBytes)
	if err != nil {
		return nil, err
	}
	f, st, err := s.openPiece(p, r.URL.Query().Get("inode"))
	if err != nil {
		return nil, problem(err, p)
	}
	defer func() { _ = f.Close() }()
	e := describe(p, &st)
	var whole io.ReaderAt = f
	if st.Size == 0 && isVirtual(p) {
		all, err := io.ReadAll(io.LimitReader(f, MaxVirtualBytes+1))
		if err != nil {
			return nil, problem(err, p)
		}
		if len(all) > MaxVirtualBytes {
			return nil, farm.Errorf(farm.CodeTooLarge, "%s has more than %d bytes, the most that is read of a file without a size", farm.Shorten(p), MaxVirtualBytes)
		}
		e.Size = int64(len(all))
		whole = strings.NewReader(string(all))
	}
	length = min(length, agent.PieceBytes, max(e.Size-offset, 0))
	if e.Size-offset > length {
		s.kept.keep(p, st.Ino, f)
	}
	content := io.NewSectionReader(whole, offset, length)
	raw, err := json.Marshal(agent.FilePiece{Entry: e, Inode: st.Ino, Length: length})
	if err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", agent.FramesType)
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(append(raw, '\n')); err != nil {
		return nil, errBroken
	}
	if _, err := io.CopyN(w, content, length); err != nil { // it has shrunk, or the reader has left
		return nil, errBroken
	}
	return nil, nil
}

// openPiece opens a file for its first piece, or, with the inode of the file that had that, for another one.
func (s *Server) openPiece(p, inode string) (*os.File, unix.Stat_t, error) {
	if number, err := strconv.ParseUint(inode, 10, 64); err == nil {
		if f := s.kept.open(p, number); f != nil {
			var st unix.Stat_t
			err := unix.Fstat(int(f.Fd()), &st) //nolint:gosec // a descriptor is small
			if err != nil {
				_ = f.Close()
			}
			return f, st, err
		}
	}
	f, st, err := open(p, 0, 0)
	if err == nil && inode != "" && inode != strconv.FormatUint(st.Ino, 10) {
		_ = f.Close()
		err = farm.Conflictf("%s was replaced while it was read: read it again", farm.Shorten(p))
	}
	return f, st, err
}
