package s3

import (
	"bufio"
	"bytes"
	"crypto/md5"  //nolint:gosec // S3 names it for integrity
	"crypto/sha1" //nolint:gosec // S3 names it for integrity
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	checksumPrefix = "X-Amz-Checksum-"
	// maxLine bounds the header line of a chunk and the trailers after the last chunk.
	maxLine = 4 << 10
	// bodyBuffer is how much of a body is read at once.
	bodyBuffer = 64 << 10
)

// hashes are the checksums that a client may send.
var hashes = map[string]func() hash.Hash{
	"Crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"Crc32c":    func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	"Crc64nvme": func() hash.Hash { return crc64.New(crc64.MakeTable(0x9a6c9329ac4bc9b5)) },
	"Sha1":      sha1.New,
	"Sha256":    sha256.New,
}

// digest is a checksum that is being computed, and its expected value.
type digest struct {
	hash.Hash
	want []byte // nil until the trailer was read
	name string // of the trailer
}

// body reads the content of a request: it decodes the chunks of "aws-chunked", and at the end compares the length and each checksum
// in the headers and in the trailers.
type body struct {
	r       *bufio.Reader
	digests []*digest
	left    int64 // of the content; -1 if unknown
	chunked bool
	chunk   int64 // left of the chunk; -1 before the first
	err     error
}

// contentOf opens the content of an object or a part.
func contentOf(r *http.Request) (*body, error) {
	b := &body{r: bufio.NewReaderSize(r.Body, bodyBuffer), left: r.ContentLength, chunk: -1}
	if text := r.Header.Get("X-Amz-Decoded-Content-Length"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return nil, errArgument
		}
		b.left = n
	}
	switch payload := r.Header.Get("X-Amz-Content-Sha256"); {
	case strings.HasPrefix(payload, "STREAMING-"):
		b.chunked = true
	case payload == "" || payload == "UNSIGNED-PAYLOAD":
	default:
		want, err := hex.DecodeString(payload)
		if err != nil || len(want) != sha256.Size {
			return nil, errArgument
		}
		b.digests = append(b.digests, &digest{Hash: sha256.New(), want: want})
	}
	if text := r.Header.Get("Content-Md5"); text != "" {
		if err := b.expect(md5.New(), text); err != nil { //nolint:gosec // as above
			return nil, err
		}
	}
	for name, newHash := range hashes {
		if text := r.Header.Get(checksumPrefix + name); text != "" {
			if err := b.expect(newHash(), text); err != nil {
				return nil, err
			}
		}
		if trailer := checksumPrefix + name; strings.EqualFold(r.Header.Get("X-Amz-Trailer"), trailer) {
			b.digests = append(b.digests, &digest{Hash: newHash(), name: trailer})
		}
	}
	return b, nil
}

func (b *body) expect(h hash.Hash, text string) error {
	want, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(want) != h.Size() {
		return errArgument
	}
	b.digests = append(b.digests, &digest{Hash: h, want: want})
	return nil
}

// Read reads the content. io.EOF means that it is complete and that all checksums match.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.read(p)
	for _, d := range b.digests {
		_, _ = d.Write(p[:n])
	}
	if b.left >= 0 {
		if b.left -= int64(n); b.left < 0 {
			err = errBody
		}
	}
	if errors.Is(err, io.EOF) {
		err = b.compare()
	}
	b.err = err
	return n, err
}

func (b *body) read(p []byte) (int, error) {
	if !b.chunked {
		return b.r.Read(p)
	}
	if b.chunk <= 0 {
		if err := b.nextChunk(); err != nil {
			return 0, err
		}
	}
	if int64(len(p)) > b.chunk {
		p = p[:b.chunk]
	}
	n, err := b.r.Read(p)
	b.chunk -= int64(n)
	return n, noEnd(err)
}

// noEnd converts an early end to an error.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return errBody
	}
	return err
}

// nextChunk reads the header line of a chunk. After the last chunk it reads the trailers and returns io.EOF.
func (b *body) nextChunk() error {
	if b.chunk == 0 {
		if line, err := b.line(); err != nil || line != "" {
			return cmpError(err, errBody)
		}
	}
	line, err := b.line()
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(line, ";") // the signature of the chunk follows
	b.chunk, err = strconv.ParseInt(strings.TrimSpace(size), 16, 64)
	if err != nil || b.chunk < 0 {
		return errBody
	}
	if b.chunk > 0 {
		return nil
	}
	return b.trailers()
}

func (b *body) trailers() error {
	for {
		line, err := b.line()
		switch {
		case errors.Is(err, errBody) && line == "": // an end without an empty line
			return io.EOF
		case err != nil:
			return err
		case line == "":
			return io.EOF
		}
		name, value, _ := strings.Cut(line, ":")
		for _, d := range b.digests {
			if d.name != "" && strings.EqualFold(d.name, strings.TrimSpace(name)) {
				if d.want, err = base64.StdEncoding.DecodeString(strings.TrimSpace(value)); err != nil {
					return errArgument
				}
			}
		}
	}
}

func (b *body) line() (string, error) {
	line, err := b.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || len(line) > maxLine {
		return "", errBody
	}
	return strings.TrimRight(string(line), "\r\n"), noEnd(err)
}

func (b *body) compare() error {
	if b.left > 0 {
		return errBody
	}
	for _, d := range b.digests {
		if !bytes.Equal(d.Sum(nil), d.want) {
			return errDigest
		}
	}
	return io.EOF
}

// cmpError returns err, or the other error if err is nil.
func cmpError(err, other error) error {
	if err != nil {
		return err
	}
	return other
}
