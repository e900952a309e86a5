package process

import (
	"errors"
	"slices"
	"sync"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// knownWriters is how many writers of one input are remembered, the last used ones: far more than write at once.
const knownWriters = 256

// writers know how far each writer of an input has come, so that what is sent again is not written again. The zero value knows none.
type writers struct {
	mu   sync.Mutex
	used []*writer // the last used one last
}

// writer is one writer of an input.
type writer struct {
	name string

	mu       sync.Mutex // held while its bytes are written
	position int64      // bytes that it has written, and one for the end of the input
}

// get finds a writer, or begins one that has written nothing.
func (w *writers) get(name string) *writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.IndexFunc(w.used, func(known *writer) bool { return known.name == name })
	one := &writer{name: name}
	if at >= 0 {
		one = w.used[at]
		w.used = slices.Delete(w.used, at, at+1)
	} else if len(w.used) >= knownWriters {
		w.used = slices.Delete(w.used, 0, 1)
	}
	w.used = append(w.used, one)
	return one
}

// WriteFrom writes p, whose first byte has the position from among all that the writer of a name writes, and ends the input then if end says so;
// the end has a position, too. What that writer has written before is skipped, so a call can be repeated. It returns the position behind what is
// written of p and end: less than all if the process reads nothing for ten seconds. CodeConflict: the process has no open input, or bytes before
// from are missing.
func (i *Input) WriteFrom(name string, from int64, p []byte, end bool) (position int64, err error) {
	if i == nil {
		return 0, errNoInput
	}
	w := i.writers.get(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	last := from + int64(len(p))
	if from < 0 || from > w.position {
		return 0, farm.Conflictf("The input has %d bytes of this writer, so it cannot continue at %d.", w.position, from)
	}
	if w.position < last {
		n, err := i.Write(p[w.position-from:])
		if w.position += int64(n); err != nil && !errors.Is(err, errUnread) {
			return w.position, err
		}
	}
	if !end || w.position < last {
		return min(w.position, last), nil
	}
	if w.position == last {
		if err := i.End(); err != nil {
			return w.position, err
		}
		w.position++
	}
	return last + 1, nil
}
