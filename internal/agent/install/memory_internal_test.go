package install

import "testing"

func TestMemoryShort(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for name, c := range map[string]struct {
		held, limit int64
		want        bool
	}{
		"a small sandbox, enough":          {64*mb - 8*mb, 64 * mb, false},
		"a small sandbox, a byte less":     {64*mb - 8*mb + 1, 64 * mb, true},
		"512 MiB, enough":                  {512*mb - 16*mb, 512 * mb, false},
		"512 MiB, a byte less":             {512*mb - 16*mb + 1, 512 * mb, true},
		"the default, enough":              {2048*mb - 64*mb, 2048 * mb, false},
		"the default, a byte less":         {2048*mb - 64*mb + 1, 2048 * mb, true},
		"a large sandbox keeps no more":    {65536*mb - 64*mb, 65536 * mb, false},
		"a large sandbox, a byte less":     {65536*mb - 64*mb + 1, 65536 * mb, true},
		"what is held is not known":        {0, 64 * mb, false},
		"over the limit, for a moment":     {65 * mb, 64 * mb, true},
		"nothing but what the agent holds": {9 * mb, 2048 * mb, false},
	} {
		if got := memoryShort(c.held, c.limit); got != c.want {
			t.Errorf("%s: memoryShort(%d, %d) = %t", name, c.held, c.limit, got)
		}
	}
}
