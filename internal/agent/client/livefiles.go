package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// changeTimeout bounds a change of a whole tree.
	changeTimeout = 10 * time.Minute
	// pieceTimeout bounds one piece of content. A caller that reads it slowly has its own time limit.
	pieceTimeout = 10 * time.Minute
	// maxPieceHead bounds the line before a piece.
	maxPieceHead = 64 << 10
	// fsValues bounds the JSON values of an entry: its fields, the entry, and farm.PagePairs.
	fsValues = 16
	// maxEvents bounds the changes of an answer, and eventValues the JSON values of each.
	maxEvents, eventValues = 1000, 8
	// maxWatched bounds the directories of a watch.
	maxWatched = 100_000
)

func fsQuery(path string) url.Values { return url.Values{"path": {path}} }

// checkFS checks what an agent says of a file.
func checkFS(e farm.FSEntry) error {
	clean, err := farm.CleanFSPath(e.Path)
	if err != nil || clean != e.Path || !validKind(e.Type, e.Mode) || e.Size < 0 || len(e.Target) > farm.MaxLinkTarget || len(e.ETag) > 128 || !visible(e.ETag) || farm.CheckMetadata(e.Metadata) != nil {
		return errFile
	}
	return nil
}

var errFile = farm.Errorf(farm.CodeInternal, "the agent described a file that cannot be")

// validKind reports whether a file can have this type and this mode.
func validKind(kind, mode string) bool {
	_, err := strconv.ParseUint(mode, 8, 12)
	return err == nil && slices.Contains([]string{"file", "dir", "symlink", "other"}, kind)
}

// visible reports whether a text can be an etag.
func visible(text string) bool {
	for _, r := range text {
		if r <= ' ' || r > '~' || r == '"' {
			return false
		}
	}
	return text != ""
}

// fsEntry makes a change that is answered with a file.
func (l Live) fsEntry(ctx context.Context, path string, query url.Values) (farm.FSEntry, error) {
	var e farm.FSEntry
	if err := l.call(ctx, changeTimeout, http.MethodPost, agent.FSPath+path, query, nil, &e); err != nil {
		return e, err
	}
	return e, checkFS(e)
}

// FSList lists what is under a path, down to a depth (0: the path itself), after a path: up to limit entries, which is at least 1 and at most
// farm.MaxFSEntries.
func (l Live) FSList(ctx context.Context, path string, depth, limit int, after string) (farm.FSListing, error) {
	query := fsQuery(path)
	query.Set("depth", strconv.Itoa(depth))
	query.Set("limit", strconv.Itoa(limit))
	query.Set("after", after)
	var found farm.FSListing
	if err := l.callFor(ctx, callTimeout, http.MethodGet, agent.FSPath, query, nil, list(&found, limit, fsValues)); err != nil {
		return found, err
	}
	if len(found.Entries) > limit || found.More && len(found.Entries) == 0 {
		return found, farm.Errorf(farm.CodeInternal, "the agent listed %d files, and %d were asked for", len(found.Entries), limit)
	}
	for _, e := range found.Entries {
		if err := checkFS(e); err != nil {
			return found, err
		}
		if e.Path != path && (depth == 0 || !strings.HasPrefix(e.Path, strings.TrimSuffix(path, "/")+"/")) {
			return found, farm.Errorf(farm.CodeInternal, "the agent listed a file that is not below the directory")
		}
	}
	return found, nil
}

// FSStat describes a file. It does not follow a link.
func (l Live) FSStat(ctx context.Context, path string) (farm.FSEntry, error) {
	list, err := l.FSList(ctx, path, 0, 1, "")
	if err != nil {
		return farm.FSEntry{}, err
	}
	if len(list.Entries) != 1 {
		return farm.FSEntry{}, farm.Errorf(farm.CodeInternal, "the agent described %d files instead of one", len(list.Entries))
	}
	return list.Entries[0], nil
}

// fsSend makes a call with a body that is answered with a file. The body is sent once.
func (l Live) fsSend(ctx context.Context, method, path string, query url.Values, body io.Reader) (farm.FSEntry, error) {
	var e farm.FSEntry
	res, err := l.do(ctx, method, agent.FSPath+path, query, struct{ io.Reader }{body})
	if err != nil {
		return e, err
	}
	defer func() { _ = res.Body.Close() }()
	if err := decode(ctx, res, short(&e)); err != nil {
		return e, err
	}
	return e, checkFS(e)
}

// FSWrite writes content to a file. ctx bounds it.
func (l Live) FSWrite(ctx context.Context, path string, how farm.FSWrite, content io.Reader) (farm.FSEntry, error) {
	query := fsQuery(path)
	query.Set("how", string(how.How))
	query.Set("offset", strconv.FormatInt(how.Offset, 10))
	query.Set("match", how.Match)
	query.Set("nomatch", how.NoMatch)
	if how.Mode >= 0 {
		query.Set("mode", strconv.FormatInt(int64(how.Mode), 8))
	}
	if how.Metadata != nil {
		text, err := json.Marshal(how.Metadata)
		if err != nil {
			return farm.FSEntry{}, err
		}
		query.Set("metadata", string(text))
	}
	return l.fsSend(ctx, http.MethodPut, "/content", query, content)
}

// FSMkdir creates a directory and those above it; mode -1: the default. It may exist.
func (l Live) FSMkdir(ctx context.Context, path string, mode int) (farm.FSEntry, error) {
	query := fsQuery(path)
	if mode >= 0 {
		query.Set("mode", strconv.FormatInt(int64(mode), 8))
	}
	return l.fsEntry(ctx, "/mkdir", query)
}

// FSChange sets the mode of a file and its time. A negative mode and a nil time stay as they are.
func (l Live) FSChange(ctx context.Context, path string, mode int, modified *time.Time) (farm.FSEntry, error) {
	query := fsQuery(path)
	if mode >= 0 {
		query.Set("mode", strconv.FormatInt(int64(mode), 8))
	}
	if modified != nil {
		query.Set("modified", strconv.FormatInt(modified.UnixNano(), 10))
	}
	return l.fsEntry(ctx, "/change", query)
}

// FSMove renames a file or a directory.
func (l Live) FSMove(ctx context.Context, from, to string) (farm.FSEntry, error) {
	return l.fsEntry(ctx, "/move", url.Values{"from": {from}, "to": {to}})
}

// FSCopy copies a file, or a directory with all that is in it.
func (l Live) FSCopy(ctx context.Context, from, to string) (farm.FSEntry, error) {
	return l.fsEntry(ctx, "/copy", url.Values{"from": {from}, "to": {to}})
}

// FSLink makes a symbolic link.
func (l Live) FSLink(ctx context.Context, path, target string) (farm.FSEntry, error) {
	query := fsQuery(path)
	query.Set("target", target)
	return l.fsEntry(ctx, "/link", query)
}

// FSRemove removes a file, or a directory with all that is in it.
func (l Live) FSRemove(ctx context.Context, path string) error {
	return l.call(ctx, changeTimeout, http.MethodDelete, agent.FSPath, fsQuery(path), nil, nil)
}

// FSUnpack unpacks an uncompressed tar into a directory: all of it, or nothing. ctx bounds it.
func (l Live) FSUnpack(ctx context.Context, path string, tar io.Reader) (farm.FSEntry, error) {
	return l.fsSend(ctx, http.MethodPost, "/tar", fsQuery(path), tar)
}

// Piece is a piece of content. The caller reads it to its end, or not, and closes it.
type Piece struct {
	io.Reader
	body io.Closer
	end  context.CancelFunc
}

// Close ends the piece.
func (p *Piece) Close() {
	p.end()
	_ = p.body.Close()
}

// PieceOf is a piece of bytes that are known.
func PieceOf(b []byte) *Piece {
	return &Piece{Reader: bytes.NewReader(b), body: http.NoBody, end: func() {}}
}

// piece asks for a piece and reads the line before it into head.
func (l Live) piece(ctx context.Context, path string, query url.Values, head any, length func() int64) (*Piece, error) {
	ctx, cancel := context.WithTimeout(ctx, pieceTimeout)
	res, err := l.do(ctx, http.MethodGet, agent.FSPath+path, query, nil) //nolint:bodyclose // Piece.Close closes it
	if err != nil {
		cancel()
		return nil, err
	}
	r := bufio.NewReaderSize(res.Body, maxPieceHead)
	raw, err := r.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(raw, head)
	}
	p := &Piece{body: res.Body, end: cancel}
	if err != nil {
		p.Close()
		if errors.Is(err, io.EOF) {
			return nil, unavailable(err, "The connection to the sandbox is broken.")
		}
		return nil, farm.Wrap(err, farm.CodeInternal, "the agent sent a piece of a file without its description")
	}
	n := length()
	if n < 0 || n > 2*agent.PieceBytes {
		p.Close()
		return nil, farm.Errorf(farm.CodeInternal, "the agent announced a piece of %d bytes", n)
	}
	begun, _ := r.Peek(r.Buffered()) // the buffer is not needed for the rest, which a slow reader takes
	p.Reader = &exactly{r: io.MultiReader(bytes.NewReader(bytes.Clone(begun)), res.Body), left: n}
	return p, nil
}

// FSRead reads a piece of a file: at most length bytes from an offset on, and at most agent.PieceBytes. inode is that of the first piece; 0: this
// is the first.
func (l Live) FSRead(ctx context.Context, path string, offset, length int64, inode uint64) (agent.FilePiece, *Piece, error) {
	query := fsQuery(path)
	query.Set("offset", strconv.FormatInt(offset, 10))
	query.Set("length", strconv.FormatInt(length, 10))
	if inode != 0 {
		query.Set("inode", strconv.FormatUint(inode, 10))
	}
	var head agent.FilePiece
	p, err := l.piece(ctx, "/content", query, &head, func() int64 { return min(head.Length, length) })
	if err != nil {
		return head, nil, err
	}
	if err := checkFS(head.Entry); err != nil {
		p.Close()
		return head, nil, err
	}
	return head, p, nil
}

// FSPack reads a piece of the tar of a directory, without files of more than most bytes; next is that of the piece before, empty: this is
// the first.
func (l Live) FSPack(ctx context.Context, path, next string, limit int64) (agent.PackPiece, *Piece, error) {
	query := fsQuery(path)
	query.Set("max_file_bytes", strconv.FormatInt(limit, 10))
	query.Set("next", next)
	var head agent.PackPiece
	p, err := l.piece(ctx, "/tar", query, &head, func() int64 { return head.Length })
	return head, p, err
}

// exactly reads a number of bytes. A source that ends before is unavailable.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	if e.left -= int64(n); err != nil && e.left > 0 {
		return n, unavailable(err, "The connection to the sandbox is broken.")
	}
	return n, nil
}

// Watch begins to watch a tree. An id that is known is not begun again. A polled watch is read by Polled, by one reader, and lives until it is
// ended or many others are begun; any other one by Watched, and lives for a minute without a reader.
func (l Live) Watch(ctx context.Context, id, path string, recursive, polled bool, ignore []string) (agent.WatchStarted, error) {
	query := fsQuery(path)
	query.Set("polled", strconv.FormatBool(polled))
	query.Set("recursive", strconv.FormatBool(recursive))
	query["ignore"] = ignore
	var out agent.WatchStarted
	err := l.call(ctx, callTimeout, http.MethodPut, agent.FSPath+"/watches/"+url.PathEscape(id), query, struct{}{}, &out)
	if err == nil && (out.Directories < 0 || out.Directories > maxWatched) {
		err = farm.Errorf(farm.CodeInternal, "the agent watches %d directories", out.Directories)
	}
	return out, err
}

// Watched returns the changes after a number, when there are some or the time is up. CodeNotFound: there is no such watch, or it is a polled one.
func (l Live) Watched(ctx context.Context, id string, after uint64, wait time.Duration) (agent.FileEvents, error) {
	query := url.Values{"after": {strconv.FormatUint(after, 10)}, "wait": {strconv.FormatInt(wait.Milliseconds(), 10)}}
	out, err := l.watched(ctx, id, query, wait)
	if err == nil && !out.Lost && len(out.Events) > 0 && out.Events[0].Seq != after+1 {
		err = errChange
	}
	return out, err
}

// Polled returns the next changes of a polled watch. What an answer had is not in the next one.
func (l Live) Polled(ctx context.Context, id string) (agent.FileEvents, error) {
	return l.watched(ctx, id, nil, 0)
}

var errChange = farm.Errorf(farm.CodeInternal, "the agent reported an impossible change")

func (l Live) watched(ctx context.Context, id string, query url.Values, wait time.Duration) (agent.FileEvents, error) {
	var out agent.FileEvents
	if err := l.callFor(ctx, wait+callTimeout, http.MethodGet, agent.FSPath+"/watches/"+url.PathEscape(id), query, nil, list(&out, maxEvents, eventValues)); err != nil {
		return out, err
	}
	if len(out.Events) > maxEvents {
		return agent.FileEvents{}, errChange
	}
	for i, e := range out.Events {
		if i > 0 && e.Seq != out.Events[i-1].Seq+1 || !validEvent(e) {
			return out, errChange
		}
	}
	return out, nil
}

// validEvent checks a change of a file.
func validEvent(e agent.FileEvent) bool {
	if len(e.Reason) > 1024 || !utf8.ValidString(e.Reason) {
		return false
	}
	whole := func(p string) bool {
		return len(p) > 0 && p[0] == '/' && len(p) <= 2*farm.MaxPathBytes && utf8.ValidString(p)
	}
	switch e.Kind {
	case agent.FileDropped:
		return e.Path == "" && e.From == ""
	case agent.FileRenamed:
		return whole(e.Path) && whole(e.From)
	case agent.FileCreated, agent.FileChanged, agent.FileRemoved:
		return whole(e.Path) && e.From == ""
	}
	return false
}

// EndWatch ends a watch.
func (l Live) EndWatch(ctx context.Context, id string) error {
	return l.call(ctx, callTimeout, http.MethodDelete, agent.FSPath+"/watches/"+url.PathEscape(id), nil, nil, nil)
}
