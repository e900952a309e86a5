package engine

import (
	"strings"
	"testing"
)

func TestAvailableMemory(t *testing.T) {
	t.Parallel()
	const text = "MemTotal:       8138204 kB\nMemFree:         123456 kB\nMemAvailable:    4194303 kB\nHugePages_Total:       0\n"
	for name, c := range map[string]struct {
		text        string
		total, want int
	}{
		"this machine":    {text, 8138204 >> 10, 4095},
		"another one":     {text, 8138204>>10 + 1, -1},
		"an old kernel":   {strings.Replace(text, "MemAvailable", "Other", 1), 8138204 >> 10, -1},
		"empty":           {"", 0, -1},
		"nothing is left": {strings.Replace(text, "4194303", "0", 1), 8138204 >> 10, 0},
	} {
		if got := availableMB(c.text, c.total); got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got, c.want)
		}
	}
}
