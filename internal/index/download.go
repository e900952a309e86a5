package index

import (
	"context"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	chunk    = 128 << 10
	attempts = 3 // how often a broken download is resumed
)

var (
	// errMismatch is the cause if a file is not the one listed.
	errMismatch = errors.New("the file is not the one listed")
	// errBroken is the cause if upstream closes the connection early.
	errBroken = errors.New("upstream closed the connection early")
)

// download fetches a file into its spool file or window and verifies it. Readers follow while it grows.
func (x *Index) download(ctx context.Context, f *flight) error {
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
	f.size = max(size, 0)
	if err := x.prepare(ctx, f, size); err != nil {
		return err
	}
	if size > 0 {
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
	if err := f.verify(sum); err != nil {
		return err
	}
	x.settle(&f.work) // first: readers that leave now do not keep it from the cache
	f.complete()
	return nil
}

// prepare reserves the space of a download: a window if the cache can store the file at the same time and there is memory for it, or if
// the file fits nowhere else; otherwise a spool file.
func (x *Index) prepare(ctx context.Context, f *flight, size int64) (err error) {
	memory, err := x.windowMemory(ctx, f, size)
	if err != nil {
		return err
	}
	if memory != nil {
		if err := x.reserve(ctx, f, windowSize); err != nil {
			memory.Release()
			return err
		}
		x.stream(ctx, f)
		f.window.memory = memory
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

// windowMemory reserves the memory of a window; nil if the file needs none.
func (x *Index) windowMemory(ctx context.Context, f *flight, size int64) (*budget.Hold, error) {
	switch {
	case size <= streamOver:
		return nil, nil // see above
	case size > x.spoolMax:
		ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
		defer cancel()
		memory, err := x.cfg.Memory.Acquire(ctx, account, windowSize)
		if err != nil {
			return nil, noRoom(f)
		}
		return memory, nil
	case f.want.key != "" && x.cache.use():
		if memory, ok := x.cfg.Memory.TryAcquire(account, windowSize); ok {
			return memory, nil
		}
	}
	return nil, nil // a spool file serves too
}

// fileHeader requests the bytes of a file without encoding, from an offset.
func fileHeader(from int64) http.Header {
	header := http.Header{"Accept": {"*/*"}, "Accept-Encoding": {"identity"}}
	if from > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
	return header
}

// continues reports whether a response starts at an offset.
func continues(resp *http.Response, from int64) bool {
	return resp.StatusCode == http.StatusPartialContent &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(from, 10)+"-")
}

// sizeOf compares the size in the page with that of the response; -1 if neither is known.
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
	return farm.Errorf(farm.CodeTooLarge, "The file %s has more than %d MiB, the limit of this farm.", want.name, limitMB)
}

// copy moves a body into the spool file or the window. size is -1 if unknown.
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
			return farm.Wrap(err, farm.CodeUnavailable, "The %s sent nothing for %s during the download of %s.", f.want.from.name, x.cfg.Timeout, f.want.name)
		case err != nil:
			return farm.Wrap(errors.Join(errBroken, err), farm.CodeUnavailable, "The %s closed the connection during the download of %s.", f.want.from.name, f.want.name)
		}
		if x.abandoned(f, size) {
			return errAbandoned
		}
	}
}

// take passes bytes on to the readers.
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

// abandoned reports whether a large download has lingered for too long, and removes it from the table if so.
func (x *Index) abandoned(f *flight, size int64) bool {
	if max(size, f.written) <= smallMax {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if f.readers > 0 || time.Since(f.left) < min(lingerMax, x.cfg.Timeout) {
		return false
	}
	x.forget(f)
	return true
}

// verify compares the hash.
func (f *flight) verify(sum hash.Hash) error {
	if sum != nil {
		if got := hex.EncodeToString(sum.Sum(nil)); got != f.want.hash {
			return f.want.mismatch(got)
		}
	}
	if f.written == 0 {
		return f.want.from.broken(errMismatch, "an empty file for %s", f.want.name)
	}
	return nil
}

// complete releases the last byte.
func (f *flight) complete() {
	if !f.isReady() {
		f.size = f.written
	}
	f.change(func() { f.whole = true })
	if !f.isReady() {
		close(f.ready)
	}
}
