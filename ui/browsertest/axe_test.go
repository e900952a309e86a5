//go:build browser

package browsertest

import (
	"os"

	"github.com/chromedp/chromedp"
)

// accessible looks with axe for what keeps people from using a page, in both themes and sizes.
func (p *page) accessible(name string) {
	p.t.Helper()
	script, err := os.ReadFile(os.Getenv("SANDFARM_TEST_AXE"))
	if err != nil {
		p.t.Fatalf("read axe: %v (make test-ui fetches it)", err)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1360, 390} {
			p.size(width, 844, scheme)
			p.do(chromedp.Evaluate(string(script), nil))
			for _, found := range value[[]string](p, `axe.run(document, { iframes: false }).then((r) => r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.target.join(" ") + " " + n.failureSummary)))`) {
				p.t.Errorf("%s, %s, %d wide: %s", name, scheme, width, found)
			}
			if over := value[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
				p.t.Errorf("%s, %s, %d wide: the page is %d pixels too wide", name, scheme, width, over)
			}
		}
	}
	p.size(1360, 900, "light")
}
