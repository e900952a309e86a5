package verbs

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPathsAreShortenedInTheirMiddle(t *testing.T) {
	t.Parallel()
	const long = "results/2026/with/many/folders/on/the/way/report-of-today.pdf"
	head := []string{"SIZE", "PATH"}
	for name, test := range map[string]struct {
		head  []string
		width int
		path  string
		want  string
	}{
		"Fits":        {head, 80, long, long},
		"JustFits":    {head, 6 + len(long), long, long},
		"OneTooMany":  {head, 5 + len(long), long, "results/2026/with/m…y/folders/on/the/way/report-of-today.pdf"},
		"Narrow":      {head, 40, long, "results/202…" + long[len(long)-22:]},
		"VeryNarrow":  {head, 10, long, "results…" + long[len(long)-16:]},
		"Short":       {head, 10, "a.txt", "a.txt"},
		"OtherColumn": {[]string{"SIZE", "ID"}, 10, long, long},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := [][]string{{"10 B", test.path}}
			fitPaths(test.head, rows, test.width)
			if diff := cmp.Diff(test.want, rows[0][1]); diff != "" {
				t.Errorf("path (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUntilHasTheDayOfWhatIsFar(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 23, 0, 0, 0, time.FixedZone("here", 2*3600))
	for left, want := range map[time.Duration]string{
		-time.Second: "over", 0: "over", time.Second: "in 1s", 90 * time.Minute: "in 1h", 48*time.Hour - time.Minute: "in 47h",
		30*24*time.Hour - 5*time.Second: "in 30d (2026-12-26)", time.Hour - time.Second: "in 1h",
		48 * time.Hour: "in 2d (2026-11-28)", 49 * time.Hour: "in 2d (2026-11-29)", 29 * 24 * time.Hour: "in 29d (2026-12-25)",
	} {
		if got := until(now.Add(left).UTC(), now); got != want {
			t.Errorf("in %s: %q, want %q", left, got, want)
		}
	}
}
