package storetest

import "testing"

// epochs checks that the epoch changes exactly when all records are lost, and that tenants are then stored again.
func epochs(t *testing.T, factory Factory) {
	b := setup(t, factory)
	first, err := b.Epoch(t.Context())
	if err != nil || first == "" {
		t.Fatalf("Epoch = %q, %v", first, err)
	}
	if again, err := b.Epoch(t.Context()); err != nil || again != first {
		t.Errorf("Epoch again = %q, %v, want %q", again, err, first)
	}
	if err := b.rdb.Del(t.Context(), b.prefix+"epoch").Err(); err != nil { // other tests share the server
		t.Fatal(err)
	}
	if other, err := b.Epoch(t.Context()); err != nil || other == "" || other == first {
		t.Errorf("Epoch after the loss = %q, %v, the first was %q", other, err, first)
	}
}
