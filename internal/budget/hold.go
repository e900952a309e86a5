package budget

// Hold is a number of bytes that a tenant holds. It is not safe for concurrent use. A nil Hold holds nothing.
type Hold struct {
	budget *Budget
	tenant string
	bytes  int64
}

// Bytes is how many bytes are held.
func (h *Hold) Bytes() int64 {
	if h == nil {
		return 0
	}
	return h.bytes
}

// Grow adds n bytes if they are there now, and reports whether they are. Nobody who waits is overtaken.
func (h *Hold) Grow(n int64) bool {
	b := h.budget
	if b == nil || n <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.account(h.tenant)
	if b.blocked || a.waiters.Len() > 0 || a.held+n > b.share || b.used+n > b.size {
		b.settle(a)
		return false
	}
	a.held += n
	b.used += n
	h.bytes += n
	return true
}

// Keep gives back all but n bytes. It does nothing if fewer are held.
func (h *Hold) Keep(n int64) {
	if h == nil || h.budget == nil || n < 0 || h.bytes <= n {
		return
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.give(b.account(h.tenant), h.bytes-n)
	h.bytes = n
}

// Release gives all bytes back. A second call does nothing.
func (h *Hold) Release() { h.Keep(0) }
