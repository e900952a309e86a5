package dockersandbox_test

import "testing"

// A workspace gets enough memory for large packages if a node has it, with a GPU or without.
func TestInitializeReservesMemoryIfANodeHasIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		room, gpus, want int // want 0: the farm's default
		device           string
	}{
		"enough":                   {0, 0, 4096, "cpu"},
		"just enough":              {4096, 0, 4096, "cpu"},
		"too little":               {4095, 0, 0, "cpu"},
		"enough and a GPU":         {0, 1, 4096, "gpu"},
		"a GPU where it is scarce": {2048, 1, 0, "gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.farm.room, b.farm.gpus, b.farm.given = c.room, c.gpus, nil
			if made := b.call("sandbox_initialize", nil); made["success"] != true || made["device"] != c.device {
				t.Fatalf("made = %v", made)
			}
			got := 0
			if len(b.farm.given) == 1 && b.farm.given[0] != nil {
				got = *b.farm.given[0].MemoryMB
			}
			if len(b.farm.given) != 1 || got != c.want {
				t.Errorf("%d sandboxes were made; MiB = %d, want %d", len(b.farm.given), got, c.want)
			}
		})
	}
}
