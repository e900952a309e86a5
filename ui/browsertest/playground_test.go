//go:build browser

package browsertest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

func TestPlayground(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.size(1360, 900, "light")
	p.sees("Playground")
	p.click("#run")
	p.until(`Boolean(document.querySelector(".see .badge.good"))`)
	p.until(`[...document.querySelectorAll(".see .picture img")].some((one) => one.complete && one.naturalWidth > 100)`)
	p.sees("butterfly.png")
	p.until(`[...document.querySelectorAll(".artifacts img")].every((one) => one.complete && one.naturalWidth > 100)`)
	p.shot("playground")
	if file := p.download(".artifacts a[download]"); !bytes.HasPrefix(file, []byte("t,r\n0.0000,")) {
		t.Errorf("the download is another file: %.40q", file)
	}
	p.accessible("playground")
	p.size(390, 844, "light")
	p.shot("playground-phone")
	p.goTo("#/jobs")
	p.sees("completed")
	p.size(1360, 900, "dark")
	p.do(chromedp.Click("a.row.job", chromedp.ByQuery))
	p.sees("Request")
	p.until(`[...document.querySelectorAll(".picture img")].some((one) => one.complete && one.naturalWidth > 100)`)
	p.shot("job")
	p.accessible("job")
	p.goTo("#/jobs")
	p.sees("completed")
	p.accessible("jobs")
	if strings.Contains(value[string](p, `document.body.innerText`), "undefined") {
		t.Error("the page shows undefined")
	}
}
