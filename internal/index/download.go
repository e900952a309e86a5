package index

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	chunk    = 128 << 10
	attempts = 3 // how often a download that breaks off is taken up again
)

var (
	// errAbandoned ends a download that nobody waits for.
	errAbandoned = errors.New("nobody waits for it any more")
	// errMismatch is the cause of refusals of files that are not the ones listed.
	errMismatch = errors.New("the file is not the one that is listed")
	// errBroken is the cause when upstream breaks off.
	errBroken = errors.New("upstream broke off")
)

// download brings a file into its spool file and checks it. Readers follow while it grows.
func (x *Index) download(ctx context.Context, f *flight) error {
	if err := x.fileSlots.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for other downloads: %w", err)
	}
	defer x.fileSlots.Release(1)
	x.count.upstreamFiles.Add(1)
	resp, err := f.want.from.get(ctx, f.want.target, fileHeader(0))
	if err != nil {
		return err
	}
	defer func() { resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return f.want.from.refused(resp.StatusCode)
	}
	size, err := x.sizeOf(f.want, resp.ContentLength)
	if err != nil {
		return err
	}
	if err := x.prepare(ctx, f, size); err != nil {
		return err
	}
	if size > 0 {
		f.size = size
		close(f.ready)
	}
	sum := newHash(f.want.algorithm)
	for attempt := 1; ; attempt++ {
		err = x.copy(ctx, f, resp.Body, size, sum)
		if err == nil {
			break
		}
		if !errors.Is(err, errBroken) || attempt == attempts || f.written == 0 || ctx.Err() != nil {
			return err
		}
		next, again := f.want.from.get(ctx, f.want.target, fileHeader(f.written))
		if again != nil {
			return err
		}
		resp.Body.Close()
		if resp = next; !continues(resp, f.written) {
			return err
		}
	}
	return f.verify(sum)
}

// prepare takes the room that a file needs while it arrives: a window where the cache can take it at the same time, or where nothing
// else has room for it; else a spool file.
func (x *Index) prepare(ctx context.Context, f *flight, size int64) (err error) {
	if size > streamOver && (f.want.key != "" && x.cache.use() || size > x.spoolMax) {
		if err := x.reserve(ctx, f, windowSize); err != nil {
			return err
		}
		f.size = size
		x.stream(ctx, f)
		return nil
	}
	if err := x.reserve(ctx, f, max(size, 0)); err != nil {
		return err
	}
	if f.spool, err = newSpool(x.cfg.Dir); err != nil {
		return farm.Wrap(err, farm.CodeUnavailable, "There is no room on this worker's disk for %s.", f.want.name)
	}
	return nil
}

// fileHeader asks for the bytes of a file as they are, from an offset.
func fileHeader(from int64) http.Header {
	header := http.Header{"Accept": {"*/*"}, "Accept-Encoding": {"identity"}}
	if from > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
	return header
}

// continues tells whether an answer goes on at an offset.
func continues(resp *http.Response, from int64) bool {
	return resp.StatusCode == http.StatusPartialContent &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(from, 10)+"-")
}

// sizeOf brings together what the page and upstream say of a file's size; -1 when neither does.
func (x *Index) sizeOf(want wanted, answered int64) (int64, error) {
	limit := int64(x.cfg.MaxFileMB) << 20
	size := answered
	if size < 0 && want.size > 0 {
		size = want.size
	}
	switch {
	case size == 0:
		return 0, want.from.broken(errMismatch, "an empty file for %s", want.name)
	case want.size > 0 && size != want.size:
		return 0, want.from.broken(errMismatch, "a file of %d bytes for %s, which has %d", size, want.name, want.size)
	case size > limit:
		return 0, tooLarge(want, x.cfg.MaxFileMB)
	}
	return size, nil
}

func tooLarge(want wanted, limitMB int) error {
	return farm.Errorf(farm.CodeTooLarge, "The file %s has more than %d MiB, the most that this farm fetches.", want.name, limitMB)
}

// copy moves a body into the spool file or the window. size is -1 when it is not known.
func (x *Index) copy(ctx context.Context, f *flight, body io.Reader, size int64, sum hash.Hash) error {
	limit := int64(x.cfg.MaxFileMB) << 20
	buf := make([]byte, chunk)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if size > 0 && f.written+int64(n) > size {
				return f.want.from.broken(errMismatch, "more than the %d bytes of %s", size, f.want.name)
			}
			if f.written+int64(n) > limit {
				return tooLarge(f.want, x.cfg.MaxFileMB)
			}
			if sum != nil {
				sum.Write(buf[:n])
			}
			if err := x.take(ctx, f, buf[:n], size); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && (size < 0 || f.written == size):
			return nil
		case errors.Is(err, errStalled):
			return farm.Wrap(err, farm.CodeUnavailable, "The %s stood still for %s within %s.", f.want.from.name, x.cfg.Timeout, f.want.name)
		case err != nil:
			return farm.Wrap(errors.Join(errBroken, err), farm.CodeUnavailable, "The %s broke off within %s.", f.want.from.name, f.want.name)
		}
		if x.abandoned(f, size) {
			return errAbandoned
		}
	}
}

// take gives bytes to the readers.
func (x *Index) take(ctx context.Context, f *flight, p []byte, size int64) error {
	if f.window != nil {
		if err := x.pace(ctx, f, len(p), size); err != nil {
			return err
		}
		f.window.feed(p)
		f.change(func() {
			f.window.copyIn(p, f.written)
			f.written += int64(len(p))
		})
		return nil
	}
	if err := x.grow(f, int64(len(p))); err != nil {
		return err
	}
	if _, err := f.spool.Write(p); err != nil {
		return farm.Wrap(err, farm.CodeUnavailable, "There is no room on this worker's disk for %s.", f.want.name)
	}
	f.change(func() { f.written += int64(len(p)) })
	return nil
}

// abandoned tells whether a download is not worth going on with, and takes it out of the table in the same moment.
func (x *Index) abandoned(f *flight, size int64) bool {
	if max(size, f.written) <= smallMax {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if f.readers > 0 || time.Since(f.left) < min(lingerMax, x.cfg.Timeout) {
		return false
	}
	for id, g := range x.flights {
		if f == g {
			delete(x.flights, id)
			break
		}
	}
	return true
}

// verify compares the hash and gives the last byte free.
func (f *flight) verify(sum hash.Hash) error {
	if sum != nil {
		if got := hex.EncodeToString(sum.Sum(nil)); got != f.want.hash {
			return f.want.mismatch(got)
		}
	}
	if f.written == 0 {
		return f.want.from.broken(errMismatch, "an empty file for %s", f.want.name)
	}
	if !f.isReady() {
		f.size = f.written
	}
	f.change(func() { f.whole = true })
	if !f.isReady() {
		close(f.ready)
	}
	return nil
}
