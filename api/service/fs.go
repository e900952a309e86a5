package service

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

// maxTime is the last time that a file may be given: beyond it nanoseconds do not fit into 64 bits.
var maxTime = time.Unix(0, math.MaxInt64)

// fsAgent finds the agent of a sandbox, and checks paths of files.
func (s *Service) fsAgent(ctx context.Context, tenant, id string, paths ...*string) (relay.Agent, error) {
	for _, p := range paths {
		clean, err := farm.CleanFSPath(*p)
		if err != nil {
			return relay.Agent{}, err
		}
		*p = clean
	}
	return s.agent(ctx, tenant, id)
}

// ReachFS fails if the files of a sandbox cannot be reached now.
func (s *Service) ReachFS(ctx context.Context, tenant, id string) error {
	_, err := s.agent(ctx, tenant, id)
	return err
}

// ListFS lists what is under a path of a sandbox, down to a depth.
func (s *Service) ListFS(ctx context.Context, tenant, id, path string, depth int, page FilePage) (wire.FSListing, error) {
	a, err := s.fsAgent(ctx, tenant, id, &path)
	if err != nil {
		return wire.FSListing{}, err
	}
	found, err := a.FSList(ctx, path, depth, page.Limit, page.After)
	if err != nil {
		return wire.FSListing{}, err
	}
	out := wire.FSListing{Items: make([]wire.FSEntry, len(found.Entries))}
	for i, e := range found.Entries {
		out.Items[i] = fsEntryOf(e)
	}
	if n := len(found.Entries); found.More && n > 0 {
		out.NextCursor = wire.Cursor(base64.RawURLEncoding.EncodeToString([]byte(found.Entries[n-1].Path)))
	}
	if found.LeftOut > 0 {
		out.Note = fmt.Sprintf("Files whose path has more than %d bytes or is not UTF-8 are left out, with all below them: %d here.", farm.MaxPathBytes, found.LeftOut)
	}
	return out, nil
}

// StatFS describes a file of a sandbox. It does not follow a link.
func (s *Service) StatFS(ctx context.Context, tenant, id, path string) (wire.FSEntry, error) {
	return s.fsEntry(ctx, tenant, id, &path, nil, func(a relay.Agent) (farm.FSEntry, error) { return a.FSStat(ctx, path) })
}

// fsEntry calls f, whose answer is a file, with the agent of a sandbox. other may be nil.
func (s *Service) fsEntry(ctx context.Context, tenant, id string, path, other *string, f func(relay.Agent) (farm.FSEntry, error)) (wire.FSEntry, error) {
	paths := []*string{path}
	if other != nil {
		paths = append(paths, other)
	}
	a, err := s.fsAgent(ctx, tenant, id, paths...)
	if err != nil {
		return wire.FSEntry{}, err
	}
	e, err := f(a)
	return fsEntryOf(e), err
}

// WriteFS writes content to a file of a sandbox; size -1: unknown. ctx bounds it.
func (s *Service) WriteFS(ctx context.Context, tenant, id, path string, how farm.FSWrite, content io.Reader, size int64) (wire.FSEntry, error) {
	if size > s.limits.MaxFileBytes {
		return wire.FSEntry{}, tooLarge(s.limits.MaxFileBytes)
	}
	capped := &noticed{r: s.capped(content)}
	e, err := s.fsEntry(ctx, tenant, id, &path, nil, func(a relay.Agent) (farm.FSEntry, error) { return a.FSWrite(ctx, path, how, capped) })
	return e, capped.or(err)
}

// UnpackFS unpacks an uncompressed tar into a directory of a sandbox: all of it, or nothing; size -1: unknown. ctx bounds it.
func (s *Service) UnpackFS(ctx context.Context, tenant, id, path string, content io.Reader, size int64) (wire.FSEntry, error) {
	if size > s.limits.MaxFileBytes {
		return wire.FSEntry{}, tooLarge(s.limits.MaxFileBytes)
	}
	capped := &noticed{r: s.capped(content)}
	e, err := s.fsEntry(ctx, tenant, id, &path, nil, func(a relay.Agent) (farm.FSEntry, error) { return a.FSUnpack(ctx, path, capped) })
	return e, capped.or(err)
}

// noticed remembers the error of a body: sending it fails then, and this is why.
type noticed struct {
	r   io.Reader
	err error
}

// Read reads.
func (n *noticed) Read(p []byte) (int, error) {
	count, err := n.r.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.EOF is never wrapped by a Reader
		n.err = err
	}
	return count, err
}

// or is the error of the body, if there was an error and the body had one.
func (n *noticed) or(err error) error {
	if err != nil && n.err != nil {
		return n.err
	}
	return err
}

// MkdirFS creates a directory and those above it; mode "": the default.
func (s *Service) MkdirFS(ctx context.Context, tenant, id, path, mode string) (wire.FSEntry, error) {
	bits, err := FSMode(mode)
	if err != nil {
		return wire.FSEntry{}, err
	}
	return s.fsEntry(ctx, tenant, id, &path, nil, func(a relay.Agent) (farm.FSEntry, error) { return a.FSMkdir(ctx, path, bits) })
}

// RemoveFS removes a file, or a directory with all that is in it.
func (s *Service) RemoveFS(ctx context.Context, tenant, id, path string) error {
	a, err := s.fsAgent(ctx, tenant, id, &path)
	if err != nil {
		return err
	}
	return a.FSRemove(ctx, path)
}

// ChangeFS sets the mode of a file, its time, or both.
func (s *Service) ChangeFS(ctx context.Context, c Call, id, path string, r wire.FSChange) (wire.FSEntry, error) {
	p := c.problems()
	bits, err := FSMode(r.Mode)
	p.check("/mode", err)
	if bits < 0 && r.ModifiedAt == nil && err == nil {
		p.addf("", "give mode or modified_at")
	}
	if at := r.ModifiedAt; at != nil && (at.Before(time.Unix(0, 0)) || at.After(maxTime)) {
		p.addf("/modified_at", "modified_at is %s; it must be from 1970 to 2262", at.Format(time.RFC3339))
	}
	if err := p.err(); err != nil {
		return wire.FSEntry{}, err
	}
	return s.fsEntry(ctx, c.Tenant, id, &path, nil, func(a relay.Agent) (farm.FSEntry, error) { return a.FSChange(ctx, path, bits, r.ModifiedAt) })
}

// MoveFS renames a file or a directory.
func (s *Service) MoveFS(ctx context.Context, c Call, id string, r wire.FSMove) (wire.FSEntry, error) {
	return s.fromTo(ctx, c, id, r, relay.Agent.FSMove)
}

// CopyFS copies a file, or a directory with all that is in it.
func (s *Service) CopyFS(ctx context.Context, c Call, id string, r wire.FSMove) (wire.FSEntry, error) {
	return s.fromTo(ctx, c, id, r, relay.Agent.FSCopy)
}

func (s *Service) fromTo(ctx context.Context, c Call, id string, r wire.FSMove, do func(relay.Agent, context.Context, string, string) (farm.FSEntry, error)) (wire.FSEntry, error) {
	p := c.problems()
	for name, path := range map[string]string{"from": r.From, "to": r.To} {
		if path == "" {
			p.addf("/"+name, "%s is empty", name)
		}
		_, err := farm.CleanFSPath(path)
		p.check("/"+name, err)
	}
	if err := p.err(); err != nil {
		return wire.FSEntry{}, err
	}
	return s.fsEntry(ctx, c.Tenant, id, &r.From, &r.To, func(a relay.Agent) (farm.FSEntry, error) { return do(a, ctx, r.From, r.To) })
}

// LinkFS makes a symbolic link.
func (s *Service) LinkFS(ctx context.Context, c Call, id string, r wire.FSLink) (wire.FSEntry, error) {
	p := c.problems()
	_, err := farm.CleanFSPath(r.Path)
	p.check("/path", err)
	if r.Path == "" {
		p.addf("/path", "path is empty")
	}
	if r.Target == "" || len(r.Target) > farm.MaxLinkTarget || strings.ContainsRune(r.Target, 0) {
		p.addf("/target", "target has 1 to %d bytes and no NUL", farm.MaxLinkTarget)
	}
	if err := p.err(); err != nil {
		return wire.FSEntry{}, err
	}
	return s.fsEntry(ctx, c.Tenant, id, &r.Path, nil, func(a relay.Agent) (farm.FSEntry, error) { return a.FSLink(ctx, r.Path, r.Target) })
}

// FSMode reads the mode of a file; "": -1.
func FSMode(text string) (int, error) {
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > farm.MaxMode {
		return 0, farm.Invalidf("mode %q is not an octal number from 0 to %o, such as 0644", farm.Shorten(text), farm.MaxMode)
	}
	return int(n), nil
}

func fsEntryOf(e farm.FSEntry) wire.FSEntry {
	out := wire.FSEntry{
		Path: e.Path, Type: e.Type, Size: e.Size, DirSize: e.DirSize, Mode: e.Mode, UID: e.UID, GID: e.GID, ModifiedAt: e.ModifiedAt.UTC().Truncate(time.Microsecond), Metadata: e.Metadata, ETag: e.ETag,
	}
	if e.Type == "symlink" {
		out.Target = &e.Target
	}
	return out
}

// FSContent is content of a sandbox that is read piece by piece: what lies in buffers on the way to a slow caller is a piece at most.
type FSContent struct {
	Entry   wire.FSEntry // of a file
	LeftOut int          // of a directory: how many files and directories could not be packed, as far as it was read
	next    func() (*relay.Piece, error)
	piece   *relay.Piece
}

// Read reads. io.EOF: all of it was read.
func (f *FSContent) Read(p []byte) (int, error) {
	for {
		if f.piece == nil {
			var err error
			if f.piece, err = f.next(); err != nil {
				return 0, err
			}
		}
		n, err := f.piece.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		f.Close()
		if n > 0 {
			return n, nil
		}
	}
}

// Close ends the reading.
func (f *FSContent) Close() {
	if f.piece != nil {
		f.piece.Close()
		f.piece = nil
	}
}

// ReadFS opens a file of a sandbox. Content begins at the part's offset and has its length; the caller closes it.
func (s *Service) ReadFS(ctx context.Context, tenant, id, path string, part func(wire.FSEntry) (Range, error)) (*FSContent, Range, error) {
	a, err := s.fsAgent(ctx, tenant, id, &path)
	if err != nil {
		return nil, Range{}, err
	}
	head, first, err := a.FSRead(ctx, path, 0, math.MaxInt64, 0)
	if err != nil {
		return nil, Range{}, err
	}
	f := &FSContent{Entry: fsEntryOf(head.Entry), piece: first}
	want, err := part(f.Entry)
	if err != nil {
		f.Close()
		return nil, Range{}, err
	}
	at, end := head.Length, want.Offset+want.Length
	if want.Offset != 0 || want.Length < head.Length {
		f.Close()
		at = want.Offset
	}
	f.next = func() (*relay.Piece, error) {
		if at >= end {
			return nil, io.EOF
		}
		got, piece, err := a.FSRead(ctx, path, at, end-at, head.Inode)
		if err != nil {
			return nil, err
		}
		if got.Length <= 0 {
			piece.Close()
			return nil, farm.Conflictf("%s has become shorter while it was read: read it again", farm.Shorten(path))
		}
		at += min(got.Length, end-at)
		return piece, nil
	}
	return f, want, nil
}

// PackFS reads a directory of a sandbox as a tar, without files larger than a tar that may be uploaded: they are holes mostly. The caller closes it.
func (s *Service) PackFS(ctx context.Context, tenant, id, path string) (*FSContent, error) {
	a, err := s.fsAgent(ctx, tenant, id, &path)
	if err != nil {
		return nil, err
	}
	head, first, err := a.FSPack(ctx, path, "", s.limits.MaxFileBytes)
	if err != nil {
		return nil, err
	}
	next, ended := head.Next, false
	f := &FSContent{piece: first, LeftOut: max(head.LeftOut, 0)}
	f.next = func() (*relay.Piece, error) {
		switch {
		case ended:
			return nil, io.EOF
		case next == "":
			ended = true
			return relay.PieceOf(endOfTar()), nil
		}
		head, piece, err := a.FSPack(ctx, path, next, s.limits.MaxFileBytes)
		if err == nil && head.Next != "" && (head.Next == next || head.Length == 0) {
			piece.Close()
			err = farm.Errorf(farm.CodeInternal, "the agent sent a piece of a tar that does not lead to its end")
		}
		if err != nil {
			return nil, err
		}
		next = head.Next
		f.LeftOut += max(head.LeftOut, 0)
		return piece, nil
	}
	return f, nil
}

// endOfTar is what ends a tar.
func endOfTar() []byte {
	var out bytes.Buffer
	_ = tar.NewWriter(&out).Close() // memory takes everything
	return out.Bytes()
}
