package duplex

// firstBuffer is the size of the first buffer of an end, which most never outgrow.
const firstBuffer = 8 << 10

// buffer is a ring of at most Window bytes. One goroutine fills it and another one takes from it, and whoever calls its methods holds the lock
// of the Conn; what space returns is filled without.
type buffer struct {
	ring  []byte
	start int // of what is kept
	kept  int
}

// space returns a part of the ring to fill, of 1 to most bytes. kept plus most is at most Window.
func (b *buffer) space(most int) []byte {
	if b.kept == len(b.ring) {
		b.grow(b.kept + most)
	}
	if b.kept == 0 {
		b.start = 0
	}
	from := (b.start + b.kept) % len(b.ring)
	to := len(b.ring)
	if from < b.start {
		to = b.start
	}
	return b.ring[from:min(to, from+most)]
}

// filled keeps the first n bytes of what space returned.
func (b *buffer) filled(n int) { b.kept += n }

// take moves bytes to p.
func (b *buffer) take(p []byte) int {
	n := 0
	for n < len(p) && b.kept > 0 {
		c := copy(p[n:], b.ring[b.start:min(len(b.ring), b.start+b.kept)])
		b.start, b.kept, n = (b.start+c)%len(b.ring), b.kept-c, n+c
	}
	return n
}

// grow makes room for size bytes.
func (b *buffer) grow(size int) {
	next := max(firstBuffer, len(b.ring))
	for next < size {
		next *= 2
	}
	ring := make([]byte, min(next, Window))
	kept := b.kept
	b.take(ring[:kept])
	b.ring, b.start, b.kept = ring, 0, kept
}
