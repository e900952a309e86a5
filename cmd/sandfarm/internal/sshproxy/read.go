package sshproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/pkg/sftp"

	"github.com/sandfarm/sandfarm/client"
)

const (
	// blockBytes is how much of a file is read at once; sftp asks for 32 KiB.
	blockBytes = 1 << 20
	// keptBlocks is how many blocks of an open file are kept. Several are being read from at once, since sftp asks ahead.
	keptBlocks = 4
)

// Fileread opens a file to read it.
func (f *files) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	e, err := f.stat(r.Filepath, true)
	if err == nil && e.Type == "dir" {
		err = fmt.Errorf("%s is a directory: %w", r.Filepath, sftp.ErrSSHFxFailure)
	}
	if err != nil {
		return nil, err
	}
	d := &download{fs: f.fs, ctx: f.ctx, path: r.Filepath, unsized: e.Size == 0}
	if _, err := d.ReadAt(make([]byte, 1), 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err // such as a file that may not be read
	}
	return d, nil
}

// download reads a file in blocks.
type download struct {
	fs      *client.FS
	ctx     context.Context // of the session
	path    string
	unsized bool // its size is not known, as of those that the kernel makes: it is one block

	mu     sync.Mutex
	blocks []*block // the newest last
}

// block is a part of a file, which is read once.
type block struct {
	number int64
	once   sync.Once
	bytes  []byte
	err    error
}

// ReadAt implements io.ReaderAt.
func (d *download) ReadAt(p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		b := d.block((offset + int64(n)) / blockBytes)
		if b.err != nil {
			return n, b.err
		}
		at := (offset + int64(n)) % blockBytes
		if at >= int64(len(b.bytes)) {
			return n, io.EOF
		}
		n += copy(p[n:], b.bytes[at:])
	}
	return n, nil
}

// block returns a block, once it is read.
func (d *download) block(number int64) *block {
	d.mu.Lock()
	var found *block
	for _, b := range d.blocks {
		if b.number == number {
			found = b
		}
	}
	if found == nil {
		found = &block{number: number}
		if d.blocks = append(d.blocks, found); len(d.blocks) > keptBlocks {
			d.blocks = d.blocks[1:]
		}
	}
	d.mu.Unlock()
	found.once.Do(func() { found.bytes, found.err = d.read(number) })
	return found
}

func (d *download) read(number int64) ([]byte, error) {
	var content *client.Content
	var err error
	switch {
	case !d.unsized:
		content, err = d.fs.OpenAt(d.ctx, d.path, number*blockBytes, blockBytes)
	case number > 0:
		return nil, nil
	default:
		content, err = d.fs.Open(d.ctx, d.path)
	}
	if err != nil {
		return nil, failure(err)
	}
	defer content.Close()
	return io.ReadAll(io.LimitReader(content, blockBytes))
}
