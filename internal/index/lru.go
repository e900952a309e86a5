package index

import (
	"container/list"
	"sync"
)

// lru keeps values up to a total cost and evicts the least recently used. A value that alone costs more is not kept.
type lru[V any] struct {
	mu    sync.Mutex
	room  int64
	used  int64
	order *list.List // of *entry[V], the last used first
	byKey map[string]*list.Element
}

type entry[V any] struct {
	key   string
	value V
	cost  int64
}

func newLRU[V any](room int64) *lru[V] {
	return &lru[V]{room: room, order: list.New(), byKey: map[string]*list.Element{}}
}

func (l *lru[V]) get(key string) (V, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.byKey[key]
	if !ok {
		var zero V
		return zero, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*entry[V]).value, true
}

func (l *lru[V]) put(key string, value V, cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(key)
	if cost > l.room {
		return
	}
	l.byKey[key] = l.order.PushFront(&entry[V]{key: key, value: value, cost: cost})
	for l.used += cost; l.used > l.room; {
		l.drop(l.order.Back().Value.(*entry[V]).key)
	}
}

func (l *lru[V]) remove(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(key)
}

func (l *lru[V]) drop(key string) {
	if e, ok := l.byKey[key]; ok {
		l.used -= e.Value.(*entry[V]).cost
		l.order.Remove(e)
		delete(l.byKey, key)
	}
}
