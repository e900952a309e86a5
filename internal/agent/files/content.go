package files

import (
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// MaxVirtualBytes bounds what is read of a file whose size the kernel does not know, such as those in /proc.
	MaxVirtualBytes = agent.PieceBytes
	// keptFor is how long a file stays open for the next piece of a reader.
	keptFor = 30 * time.Second
	// maxKept bounds the files that are open between two pieces. Beyond it the one that was read least recently is closed.
	maxKept = 32
)

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
	f, of, err := s.openPiece(p, r.URL.Query().Get("inode"))
	if err != nil {
		return nil, Problem(err, p)
	}
	defer func() { _ = f.Close() }()
	e := of.entry(p)
	var whole io.ReaderAt = f
	if of.st.Size == 0 && isVirtual(p) {
		all, err := io.ReadAll(io.LimitReader(f, MaxVirtualBytes+1))
		if err != nil {
			return nil, Problem(err, p)
		}
		if len(all) > MaxVirtualBytes {
			return nil, farm.Errorf(farm.CodeTooLarge, "%s has more than %d bytes, the most that is read of a file without a size", farm.Shorten(p), MaxVirtualBytes)
		}
		e.Size = int64(len(all))
		whole = strings.NewReader(string(all))
	}
	length = min(length, agent.PieceBytes, max(e.Size-offset, 0))
	if e.Size-offset > length {
		s.kept.keep(p, of.st.Ino, f)
	}
	return nil, sendPiece(w, agent.FilePiece{Entry: e, Inode: of.st.Ino, Length: length}, io.NewSectionReader(whole, offset, length), length)
}

// openPiece opens a file for its first piece, or, with the inode of the file that had that, for another one.
func (s *Server) openPiece(p, inode string) (*os.File, info, error) {
	if number, err := strconv.ParseUint(inode, 10, 64); err == nil {
		if f := s.kept.open(p, number); f != nil {
			return regular(f)
		}
	}
	f, of, err := anywhere{}.file(p, unix.O_RDONLY, 0)
	if err == nil && inode != "" && inode != strconv.FormatUint(of.st.Ino, 10) {
		_ = f.Close()
		err = farm.Conflictf("%s was replaced while it was read: read it again", farm.Shorten(p))
	}
	return f, of, err
}

// keptFiles are the files that are read in pieces. Whoever has the first piece of a file gets the others of the same one, also when another file
// has got its name meanwhile. The zero value is ready to use.
type keptFiles struct {
	mu    sync.Mutex
	files []*keptFile // the one that was read last at the end
}

type keptFile struct {
	path  string
	inode uint64
	file  *os.File
	end   *time.Timer
}

// keep has a file stay open for later pieces. The caller closes its own f.
func (k *keptFiles) keep(path string, inode uint64, f *os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := k.find(path, inode); i >= 0 {
		k.touch(i)
		return
	}
	own, err := again(f)
	if err != nil {
		return // a later piece is read by the name
	}
	kept := &keptFile{path: path, inode: inode, file: own}
	kept.end = time.AfterFunc(keptFor, func() { k.drop(kept) })
	if k.files = append(k.files, kept); len(k.files) > maxKept {
		k.remove(0)
	}
}

// open opens a file that was kept; nil: it was not.
func (k *keptFiles) open(path string, inode uint64) *os.File {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := k.find(path, inode)
	if i < 0 {
		return nil
	}
	f, err := again(k.files[i].file)
	if err != nil {
		return nil
	}
	k.touch(i)
	return f
}

// find is the place of a file; -1: it is not kept. The caller holds mu, here and below.
func (k *keptFiles) find(path string, inode uint64) int {
	return slices.IndexFunc(k.files, func(f *keptFile) bool { return f.path == path && f.inode == inode })
}

func (k *keptFiles) touch(i int) {
	kept := k.files[i]
	kept.end.Reset(keptFor)
	k.files = append(slices.Delete(k.files, i, i+1), kept)
}

func (k *keptFiles) remove(i int) {
	k.files[i].end.Stop()
	_ = k.files[i].file.Close()
	k.files = slices.Delete(k.files, i, i+1)
}

// drop closes a file that nobody has read for a while.
func (k *keptFiles) drop(kept *keptFile) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.Index(k.files, kept); i >= 0 {
		k.remove(i)
	}
}

// again opens the same file once more: closing one does not end reads of the other.
func again(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
