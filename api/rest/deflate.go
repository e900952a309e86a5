package rest

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// deflater compresses the first gzipTo bytes of an answer and stores the rest, in one stream of DEFLATE or several. begin begins each. It compresses on the cores
// of the request's tenant (see budget.Core), and has none while it sends.
type deflater struct {
	ctx           context.Context // of the request
	to            io.Writer
	packed        bytes.Buffer  // what is to be sent
	fast, storing *flate.Writer // nil until used
	now           *flate.Writer // one of them
	left          int           // bytes to compress
	held          int           // bytes that now has, and has not compressed
}

const (
	// windowBytes is how much compress/flate compresses at once, with BestSpeed, when more comes.
	windowBytes = 1<<16 - 1
	// endBytes is what the end of a stream and the begin of the next one cost, as bytes to compress: a zip may have 16,000 of them.
	endBytes = 4 << 10
)

func newDeflater(ctx context.Context) *deflater { return &deflater{ctx: ctx, left: gzipTo} }

func (d *deflater) begin(to io.Writer) (err error) {
	d.to, d.held = to, 0
	if d.left == 0 {
		return d.use(&d.storing, flate.NoCompression)
	}
	return d.use(&d.fast, flate.BestSpeed)
}

func (d *deflater) use(w **flate.Writer, level int) (err error) {
	if *w == nil {
		*w, err = flate.NewWriter(&d.packed, level)
	} else {
		(*w).Reset(&d.packed)
	}
	d.now = *w
	return err
}

// Write implements io.Writer.
func (d *deflater) Write(p []byte) (n int, err error) {
	if d.left > 0 {
		n = min(len(p), d.left)
		d.held += n
		size := max(0, d.held-1) / windowBytes * windowBytes
		if d.held -= size; n == d.left {
			size += d.held
		}
		err := d.send(size, func() error {
			if _, err := d.now.Write(p[:n]); err != nil || d.left > n {
				return err
			}
			return d.now.Flush() // the stream goes on at a whole byte
		})
		if d.left -= n; err != nil || d.left > 0 {
			return n, err
		}
		if err := d.begin(d.to); err != nil {
			return n, err
		}
	}
	return len(p), d.send(0, func() error {
		_, err := d.now.Write(p[n:])
		return err
	})
}

// send compresses so many bytes, and sends what that made.
func (d *deflater) send(size int, compress func() error) error {
	leave, err := budget.Core(d.ctx, size)
	if err != nil {
		return err
	}
	err = compress()
	leave()
	if err == nil {
		_, err = d.packed.WriteTo(d.to)
	}
	return err
}

// Close ends the stream that begin began.
func (d *deflater) Close() error { return d.send(d.held+endBytes, d.now.Close) }

// writeGzip writes content as gzip, by a deflater, and returns its length.
func writeGzip(ctx context.Context, to io.Writer, content io.Reader) (n int64, err error) {
	packed, sum := newDeflater(ctx), crc32.NewIEEE()
	if _, err := to.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff}); err != nil { // no name, no time, fast, any system
		return 0, err
	}
	if err := packed.begin(to); err != nil {
		return 0, err
	}
	if n, err = io.Copy(io.MultiWriter(packed, sum), content); err != nil {
		return n, err
	}
	if err := packed.Close(); err != nil {
		return n, err
	}
	_, err = to.Write(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, sum.Sum32()), uint32(n))) //nolint:gosec // modulo 1 << 32, as gzip has it
	return n, err
}
