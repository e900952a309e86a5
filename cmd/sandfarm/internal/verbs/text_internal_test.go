package verbs

import (
	"testing"

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
