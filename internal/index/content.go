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

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// errNowCached means that the file is in the cache now and must be read there, or be downloaded anew.
var errNowCached = errors.New("the file is in the cache now")

// content reads one file, wherever it is: in the cache, in a running download, or upstream. If the cache fails, it continues
// elsewhere.
type content struct {
	x    *Index
	ctx  context.Context // io.ReadSeeker has no other way to learn of its caller's context
	want wanted
	size int64
	err  error // why reading failed

	off    int64
	jumped bool          // Seek set off, and nothing was read since
	body   io.ReadCloser // from the cache or from upstream, at off; nil if none is open
	part   *budget.Place // of a body that is from upstream
	flight *flight       // nil: the file is in the cache
	sum    hash.Hash     // of the bytes read so far, if a large file is read from its start
}

// open returns a file as soon as its source is known. The caller closes it.
func (x *Index) open(ctx context.Context, want wanted) (*content, error) {
	c := &content{x: x, ctx: ctx, want: want}
	if size, ok := x.known.get(want.key); ok && want.key != "" && x.cache.use() {
		x.count.hits.Add(1)
		x.used(ctx, want.key)
		c.size = size
		return c, nil
	}
	return c, c.attach(false)
}

// attach joins the file's flight. anew skips the cache, which has turned out to be wrong.
func (c *content) attach(anew bool) error {
	f, size, err := c.x.join(c.ctx, c.want, anew)
	if err != nil {
		return err
	}
	if f == nil {
		c.size = size
		return nil
	}
	c.x.slotless.Add(1)
	err = c.x.await(c.ctx, &f.work, c.x.fileSlots, func(ctx context.Context, place *budget.Place) { c.x.run(ctx, f, place) })
	c.x.slotless.Add(-1)
	if err != nil {
		return errors.Join(err, c.x.leave(f))
	}
	select {
	case <-f.ready:
	case <-c.ctx.Done():
		return errors.Join(context.Cause(c.ctx), c.x.leave(f))
	}
	f.mu.Lock()
	err = f.err
	f.mu.Unlock()
	if err != nil {
		return errors.Join(err, c.x.leave(f))
	}
	if c.size > 0 && f.size != c.size {
		return errors.Join(fmt.Errorf("read on in %s: its size was %d and is %d", c.want.name, c.size, f.size), c.x.leave(f))
	}
	c.size, c.flight = f.size, f
	if f.window != nil {
		f.enterWindow(c)
	}
	return nil
}

// Read reads the file.
func (c *content) Read(p []byte) (int, error) {
	if c.off >= c.size {
		return 0, io.EOF
	}
	n, err := c.read(p)
	if c.sum != nil {
		c.sum.Write(p[:n])
		if c.off+int64(n) == c.size {
			if got := hex.EncodeToString(c.sum.Sum(nil)); got != c.want.hash {
				n, err = n-1, c.want.mismatch(got)
			}
		}
	}
	c.off += int64(n)
	c.jumped = false
	if err == nil || errors.Is(err, io.EOF) && c.off >= c.size {
		return n, err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	c.err = err
	return n, err
}

func (c *content) read(p []byte) (int, error) {
	var n int
	err := errNowCached
	for range attempts {
		if n, err = c.readWhere(p); !errors.Is(err, errNowCached) {
			break
		}
	}
	return n, err
}

func (c *content) readWhere(p []byte) (int, error) {
	if c.flight == nil {
		if n, ok := c.readCache(p); ok {
			return n, nil
		}
		if err := c.attach(true); err != nil {
			return 0, err
		}
		if c.flight == nil {
			return 0, io.ErrUnexpectedEOF
		}
	}
	if c.body != nil {
		return c.body.Read(p)
	}
	if !c.jumped || c.off == 0 {
		return c.readOn(p)
	}
	// A range from the middle of a file that is being downloaded: installers give up if it takes too long.
	ctx, cancel := context.WithTimeoutCause(c.ctx, max(c.x.cfg.Timeout/3, time.Millisecond), errStalled)
	defer cancel()
	n, err := c.flight.readAt(ctx, p, c.off)
	if n > 0 || c.ctx.Err() != nil || !errors.Is(err, errStalled) && !errors.Is(err, errPassed) {
		return n, err
	}
	if !c.flight.isStored() && c.direct() {
		return c.body.Read(p)
	}
	return c.readOn(p)
}

// readOn reads the file sequentially while it is downloaded. A reader that fell behind the window reads from the cache, or from
// upstream until the cache has the file; its own bytes are hashed, so it never gets a complete file with a wrong hash.
func (c *content) readOn(p []byte) (int, error) {
	f := c.flight
	if f.window != nil {
		if c.off == 0 {
			c.sum = newHash(c.want.algorithm)
		}
		f.follow(c, c.off)
	}
	n, err := f.readAt(c.ctx, p, c.off)
	if !errors.Is(err, errPassed) {
		if f.window != nil {
			f.follow(c, c.off+int64(n))
		}
		return n, err
	}
	if !f.isStored() && c.sum != nil && c.direct() {
		return c.body.Read(p)
	}
	if err := f.awaitStored(c.ctx); err != nil && (c.off > 0 || !errors.Is(err, errLost)) {
		return 0, err
	}
	return 0, errors.Join(c.Close(), errNowCached) // or it has read nothing yet of what is lost: a new download begins
}

// readCache reads from the cache; false if that fails.
func (c *content) readCache(p []byte) (int, bool) {
	if c.body == nil {
		body, size, ok := c.x.cache.get(c.ctx, c.want.key, c.off, 0)
		if ok && size != c.size {
			body.Close()
			c.x.cache.remove(c.ctx, c.want.key) // it is not what was stored
			ok = false
		}
		if !ok {
			c.x.known.remove(c.want.key)
			return 0, false
		}
		c.body = body
	}
	n, err := c.body.Read(p)
	if n > 0 || err == nil {
		return n, true
	}
	// An answer that breaks off is no failure of the cache: a store ends those of readers that take nothing for half a minute, and the next read asks it again.
	c.x.known.remove(c.want.key)
	c.shut()
	return 0, false
}

// direct requests the range from upstream. As with any range, its bytes are not verified.
func (c *content) direct() bool {
	place := tryAcquire(tenantOf(c.ctx), c.x.partSlots)
	if place == nil {
		return false
	}
	resp, err := c.want.from.get(c.ctx, c.want.target, fileHeader(c.off))
	if err != nil {
		place.Leave()
		return false
	}
	if !continues(resp, c.off) || !strings.HasSuffix(resp.Header.Get("Content-Range"), "/"+strconv.FormatInt(c.size, 10)) {
		resp.Body.Close()
		place.Leave()
		return false
	}
	c.body, c.part = resp.Body, place
	return true
}

// Seek sets the offset of the next Read.
func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.off
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return 0, errors.New("seek in package: before its beginning")
	}
	if offset != c.off {
		c.shut()
		c.sum = nil // what follows is not the rest of what was hashed
	}
	c.off, c.jumped = offset, true
	return offset, nil
}

func (c *content) shut() {
	if c.body != nil {
		c.body.Close()
		c.body = nil
	}
	if c.part != nil {
		c.part.Leave()
		c.part = nil
	}
}

// Close ends reading.
func (c *content) Close() error {
	c.shut()
	if c.flight == nil {
		return nil
	}
	f := c.flight
	c.flight = nil
	if f.window != nil {
		f.leaveWindow(c)
	}
	return c.x.leave(f)
}

// serveFile serves a file or a range of it.
func (x *Index) serveFile(w http.ResponseWriter, r *http.Request, want wanted) {
	c := &content{x: x, ctx: r.Context(), want: want, size: want.size}
	if r.Method != http.MethodHead || want.size == 0 {
		var err error
		if c, err = x.open(r.Context(), want); err != nil {
			x.fail(w, r, err)
			return
		}
	}
	defer c.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "no-store")
	if want.hash != "" {
		h.Set("ETag", `"`+want.algorithm+"-"+want.hash+`"`)
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	httpserver.OneRange(r)
	http.ServeContent(w, r, "", time.Time{}, c)
	if c.err != nil {
		if r.Context().Err() == nil {
			x.warn(r.Context(), "a download of a package was cut off", "file", want.name, "error", c.err)
		}
		panic(http.ErrAbortHandler) // the reader must notice that the file is incomplete
	}
}
