package rest

import (
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"io"
)

// deflater compresses the first gzipTo bytes of an answer and stores the rest, in one stream of DEFLATE or several. begin begins each.
type deflater struct {
	to            io.Writer
	fast, storing *flate.Writer // nil until used
	now           *flate.Writer // one of them
	left          int           // bytes to compress
}

func newDeflater() *deflater { return &deflater{left: gzipTo} }

func (d *deflater) begin(to io.Writer) (err error) {
	d.to = to
	if d.left == 0 {
		return d.use(&d.storing, flate.NoCompression)
	}
	return d.use(&d.fast, flate.BestSpeed)
}

func (d *deflater) use(w **flate.Writer, level int) (err error) {
	if *w == nil {
		*w, err = flate.NewWriter(d.to, level)
	} else {
		(*w).Reset(d.to)
	}
	d.now = *w
	return err
}

// Write implements io.Writer.
func (d *deflater) Write(p []byte) (n int, err error) {
	if d.left > 0 {
		n, err = d.now.Write(p[:min(len(p), d.left)])
		if d.left -= n; err != nil || d.left > 0 {
			return n, err
		}
		if err := d.now.Flush(); err != nil { // the stream goes on at a whole byte
			return n, err
		}
		if err := d.begin(d.to); err != nil {
			return n, err
		}
	}
	more, err := d.now.Write(p[n:])
	return n + more, err
}

// Close ends the stream that begin began.
func (d *deflater) Close() error { return d.now.Close() }

// writeGzip writes content as gzip, by a deflater, and returns its length.
func writeGzip(to io.Writer, content io.Reader) (n int64, err error) {
	packed, sum := newDeflater(), crc32.NewIEEE()
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
