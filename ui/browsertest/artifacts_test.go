//go:build browser

package browsertest

import (
	"context"
	"testing"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// manyArtifacts answers for the list of artifacts, with 60 that are no pictures, in pages. The last one is of a job and a sandbox of its own.
const manyArtifacts = `(() => {
  const real = window.fetch;
  window.fetch = (path, options) => {
    const url = new URL(path, document.baseURI);
    if (!url.pathname.endsWith("/v1/artifacts")) return real(path, options);
    const all = Array.from({ length: 60 }, (_, i) => ({ id: "art_" + i, path: "out/file" + i + ".csv", name: "file" + i + ".csv", size: 1, content_type: "text/csv", url: "#", created_at: new Date(1.8e12 - i * 1000).toISOString(), job_id: "job_" + (i < 59 ? "0" : "1").repeat(26), sandbox_id: "sbx_" + (i < 59 ? "0" : "1").repeat(26) }));
    const found = all.filter((one) => ["job_id", "sandbox_id", "name"].every((name) => !url.searchParams.get(name) || one[name] === url.searchParams.get(name)));
    const from = Number(url.searchParams.get("cursor") || 0);
    const to = from + Number(url.searchParams.get("limit"));
    return Promise.resolve(new Response(JSON.stringify({ items: found.slice(from, to), next_cursor: to < found.length ? String(to) : null })));
  };
})()`

func TestArtifactsAreSoughtAmongAll(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(manyArtifacts).Do(ctx)
		return err
	}), chromedp.Reload())
	p.goTo("#/artifacts")
	p.sees("out/file49.csv")
	for _, word := range []string{"job_11111111111111111111111111", "sbx_11111111111111111111111111", "file59.csv"} {
		p.fill("input[type=search]", word)
		p.sees("out/file59.csv")
		p.until(`document.querySelectorAll(".artifacts li").length === 1`)
	}
	p.fill("input[type=search]", "file5.cs")
	p.sees("No artifact has exactly this name.")
	p.fill("input[type=search]", "file59")
	p.sees("None among the 50 loaded")
	p.clickText("Load more")
	p.sees("out/file59.csv")
	p.fill("input[type=search]", "")
	p.sees("out/file1.csv")
	p.choose("select", "pictures", 0)
	p.sees("No such artifacts")
}
