package livefiles

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

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
	f, st, err := open(p, 0, 0)
	if err != nil {
		return nil, problem(err, p)
	}
	defer func() { _ = f.Close() }()
	e := describe(p, &st)
	if inode := r.URL.Query().Get("inode"); inode != "" && inode != strconv.FormatUint(st.Ino, 10) {
		return nil, farm.Conflictf("%s was replaced while it was read: read it again", farm.Shorten(p))
	}
	var content io.Reader
	if st.Size == 0 && isVirtual(p) {
		all, err := io.ReadAll(io.LimitReader(f, MaxVirtualBytes+1))
		if err != nil {
			return nil, problem(err, p)
		}
		if len(all) > MaxVirtualBytes {
			return nil, farm.Errorf(farm.CodeTooLarge, "%s has more than %d bytes, the most that is read of a file without a size", farm.Shorten(p), MaxVirtualBytes)
		}
		e.Size = int64(len(all))
		content = strings.NewReader(string(all))
	} else {
		content = f
	}
	length = min(length, agent.PieceBytes, max(e.Size-offset, 0))
	if offset > 0 && length > 0 {
		if _, err := content.(io.Seeker).Seek(offset, io.SeekStart); err != nil { //nolint:forcetypeassert // both are
			return nil, problem(err, p)
		}
	}
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
