package engineproxy

import "sync"

// knownMax is how many ids a proxy remembers. Beyond it, it forgets one, whose container is looked up again.
const knownMax = 10_000

// known remembers ids of the engine, which are never used twice.
type known struct {
	mu  sync.Mutex
	ids map[string]string
}

func newKnown() *known { return &known{ids: map[string]string{}} }

func (k *known) put(id, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ids) >= knownMax {
		for other := range k.ids {
			delete(k.ids, other)
			break
		}
	}
	k.ids[id] = value
}

func (k *known) get(id string) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, ok := k.ids[id]
	return value, ok
}

// take is get, and forgets the id.
func (k *known) take(id string) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, ok := k.ids[id]
	delete(k.ids, id)
	return value, ok
}
