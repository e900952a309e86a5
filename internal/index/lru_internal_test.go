package index

import "testing"

func TestLRU(t *testing.T) {
	t.Parallel()
	l := newLRU[int](10)
	for i, key := range []string{"a", "b", "c"} {
		l.put(key, i, 3)
	}
	if _, ok := l.get("a"); !ok || l.used != 9 {
		t.Errorf("used %d of 10", l.used)
	}
	l.put("d", 3, 4) // b is the least recently used, then c
	for key, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if _, ok := l.get(key); ok != want {
			t.Errorf("%s exists: %v", key, ok)
		}
	}
	for cost, want := range map[int64]bool{9: true, 10: true, 11: false} {
		l.put("e", 4, cost)
		if _, ok := l.get("e"); ok != want || l.used > 10 {
			t.Errorf("a value of %d exists: %v, used %d", cost, ok, l.used)
		}
	}
	l.put("f", 5, 1)
	l.put("f", 6, 2)
	if v, _ := l.get("f"); v != 6 || l.used != 2 || l.order.Len() != 1 {
		t.Errorf("value %d, used %d by %d", v, l.used, l.order.Len())
	}
	l.remove("f")
	l.remove("f")
	if l.used != 0 || l.order.Len() != 0 || len(l.byKey) != 0 {
		t.Errorf("used %d by %d", l.used, l.order.Len())
	}
}
