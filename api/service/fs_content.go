package service

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

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
		if err == nil && head.Next == next {
			piece.Close()
			err = farm.Errorf(farm.CodeInternal, "the agent sent the same piece of a tar again")
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
