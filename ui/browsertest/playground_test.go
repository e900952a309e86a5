//go:build browser

package browsertest

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"
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
	opened := chromedp.WaitNewTarget(p.ctx, func(info *target.Info) bool { return strings.HasPrefix(info.URL, "blob:"+p.farm.url+"/") })
	p.click(".see .picture a")
	select {
	case id := <-opened:
		p.do(chromedp.ActionFunc(func(ctx context.Context) error {
			return target.CloseTarget(id).Do(cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser))
		}), cdppage.BringToFront())
	case <-time.After(patience):
		t.Error("the picture opens in no tab of its own")
	}
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
	p.until(`document.title === "import numpy as np · run · Sandfarm"`)
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

// A result that is HTML is shown whole, with the margins at its ends.
func TestFrameHasTheHeightOfItsPage(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	job := f.run("", `
from IPython.display import HTML, display
display(HTML("<div style='margin:40px;height:50px'>margins</div>"))
display(HTML("<p style='margin:10px 0;height:20px'>one</p><p style='margin:10px 0;height:20px'>two</p>"))
display(HTML("<div style='height:30px'>plain</div>"))
`)
	p := openPage(t, f, "#/jobs/"+job.ID)
	p.until(`[...document.querySelectorAll("iframe.page")].map((one) => one.clientHeight).join() === "130,70,30"`)
	p.shot("frames")
}
