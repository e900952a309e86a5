package index_test

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
)

func TestDir(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := index.NewDir(t.TempDir() + "/made/later")
	if _, _, err := d.Get(ctx, "index/a", 0, 0); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("missing: %v", err)
	}
	none := func(string, int64, time.Time) error { t.Error("something is listed"); return nil }
	if err := d.List(ctx, "index/", none); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"index/a", "index/b/c", "other/d"} {
		if err := d.Put(ctx, key, strings.NewReader("0123456789"), 10); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Put(ctx, "index/short", strings.NewReader("0123"), 10); err == nil {
		t.Error("half a value was kept")
	}
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 0, "0123456789"}, {3, 0, "3456789"}, {3, 4, "3456"}, {8, 40, "89"}} {
		r, size, err := d.Get(ctx, "index/b/c", c.offset, c.length)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if string(text) != c.want || size != 10 || err != nil || r.Close() != nil {
			t.Errorf("Get(%d, %d) = %q of %d, %v", c.offset, c.length, text, size, err)
		}
	}
	if err := d.Delete(ctx, "index/a", "index/never"); err != nil {
		t.Error(err)
	}
	var keys []string
	if err := d.List(ctx, "index/", func(key string, size int64, _ time.Time) error {
		if keys = append(keys, key); size != 10 {
			t.Errorf("%s has %d bytes", key, size)
		}
		return nil
	}); err != nil || !slices.Equal(keys, []string{"index/b/c"}) {
		t.Errorf("listed %v, %v", keys, err)
	}
	for _, key := range []string{"../x", "/etc/passwd", "index/../../x"} {
		if err := d.Put(ctx, key, strings.NewReader(""), 0); err == nil {
			t.Errorf("%q was taken for a key", key)
		}
	}
}
