//go:build browser

package ui_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// manyJobs answers for the list of jobs, 10 000 of them in pages, and leaves all other calls alone.
const manyJobs = `(() => {
  const real = window.fetch;
  window.fetch = (path, options) => {
    const url = new URL(path, document.baseURI);
    if (!url.pathname.endsWith("/v1/jobs")) return real(path, options);
    const from = Number(url.searchParams.get("cursor") || 0);
    const to = Math.min(10000, from + Number(url.searchParams.get("limit")));
    const items = [];
    for (let i = from; i < to; i += 1) items.push({ id: "job_" + i, kind: "execute", state: "completed", created_at: new Date(1.8e12 - i * 1000).toISOString(), finished_at: new Date(1.8e12 - i * 1000 + 5).toISOString(), timings: { queue_ms: 1, run_ms: 2, upload_ms: 0 }, request: { code: "print(" + i + ")" }, links: {} });
    return Promise.resolve(new Response(JSON.stringify({ items, next_cursor: to < 10000 ? String(to) : null })));
  };
})()`

// maxRows is how many rows of a list may be elements at once, whatever its length: those of a window and some above and below.
const maxRows = 60

func TestALongListStaysSmall(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.size(1360, 900, "light")
	p.sees("Playground")
	p.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(manyJobs).Do(ctx)
		return err
	}), chromedp.Reload())
	p.sees("Playground")
	p.goTo("#/jobs")
	p.sees("print(0)")
	// scrolls to the end, as each page comes
	p.until(`(() => { scrollTo(0, document.documentElement.scrollHeight); return document.body.innerText.includes("print(9999)") })()`)
	if rows := value[int](p, `document.querySelectorAll("[data-row]").length`); rows < 10 || rows > maxRows {
		t.Errorf("%d rows are elements", rows)
	}
	p.do(chromedp.Evaluate(`scrollTo(0, 5000 * 52)`, nil))
	p.sees("print(5000)")
	if rows := value[int](p, `document.querySelectorAll("[data-row]").length`); rows < 10 || rows > maxRows {
		t.Errorf("in the middle %d rows are elements", rows)
	}
	// the keyboard moves through it and opens a job
	p.do(chromedp.Evaluate(`scrollTo(0, 0)`, nil))
	p.sees("print(0)")
	p.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("j"), chromedp.KeyEvent("k"))
	p.until(`document.activeElement.getAttribute("href") === "#/jobs/job_0"`)
	p.do(chromedp.KeyEvent("?"))
	p.sees("Keyboard")
	p.click("dialog header button")
	p.do(chromedp.KeyEvent("/"))
	p.until(`document.activeElement.type === "search"`)
}

func TestJobsShowWhatWentWrong(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	call[record](f, "", "POST", "/v1/run?wait=60", map[string]any{"code": "print('well')", "filename": "plot.py"})
	for _, code := range []string{"1 / 0", "import sys; sys.exit(3)"} {
		f.run("", code)
	}
	p := openPage(t, f, "#/jobs")
	p.until(`document.querySelectorAll(".row.job[data-row]").length === 3`)
	// the newest is the first; that of code which raised or left is not green
	got := value[[]string](p, `[...document.querySelectorAll(".row.job[data-row]")].map((row) => [...row.querySelectorAll(".badge")].map((one) => one.className + " " + one.innerText).join(", "))`)
	want := []string{"badge dull completed, badge bad exit 3", "badge dull completed, badge bad ZeroDivisionError", "badge good completed"}
	if !slices.Equal(got, want) {
		t.Errorf("the badges of the jobs are %q, not %q", got, want)
	}
	// a file is listed by its name, and a phone shows kinds, too
	const cells = `[...document.querySelectorAll(".row.job[data-row]")].map((row) => [...row.querySelectorAll(".kind, .what code")].map((one) => one.checkVisibility() && one.innerText).join(" "))`
	for _, width := range []int64{1360, 390} {
		p.size(width, 844, "light")
		if got, want := value[[]string](p, cells), []string{"run import sys; sys.exit(3)", "run 1 / 0", "run plot.py"}; !slices.Equal(got, want) {
			t.Errorf("%d wide the jobs are %q, not %q", width, got, want)
		}
	}
	p.size(1360, 900, "light")
	p.accessible("jobs that failed")
	p.do(chromedp.Evaluate(`{ const states = document.querySelector(".bar-head select"); states.value = "wrong"; states.dispatchEvent(new Event("change", { bubbles: true })) }`, nil))
	const wrong = `document.querySelectorAll(".row.job[data-row]").length === 2 && !document.querySelector(".row.job .badge.good") && document.querySelector(".bar-head select")?.value === "wrong"`
	p.until(wrong)
	p.do(chromedp.Reload())
	p.until(wrong)
	p.click("a.row.job")
	p.sees("Request")
	p.do(chromedp.NavigateBack())
	p.until(wrong)
	box := f.sandbox("", map[string]any{})
	p.choose("select", "create", 1)
	p.choose("select", "completed", 0)
	p.until(`location.hash === "#/jobs?state=completed&kind=create"`)
	p.until(`document.querySelector(".row.job[data-row] .what")?.innerText === "` + box[:12] + `…"`)
	p.goTo("#/jobs")
	p.until(`document.querySelectorAll(".row.job[data-row]").length === 4`)
	p.do(chromedp.Evaluate(`{ const box = document.querySelector("[aria-label=Sandbox]"); box.value = "`+box+`"; box.dispatchEvent(new Event("change", { bubbles: true })) }`, nil))
	p.until(`location.hash === "#/jobs?sandbox_id=` + box + `" && document.querySelectorAll(".row.job[data-row]").length === 1`)
	p.do(chromedp.Reload())
	p.until(`document.querySelector("[aria-label=Sandbox]")?.value === "` + box + `" && document.querySelectorAll(".row.job[data-row]").length === 1`)
	// a job runs again where its sandbox is open, and is not offered to where each click would fail
	f.execute("", box, "print('hi' + '!')")
	p.until(`document.querySelectorAll(".row.job[data-row]").length === 2`)
	p.click("a.row.job")
	p.sees("Run again")
	call[record](f, "", "DELETE", "/v1/sandboxes/"+box+"?wait=60", nil)
	p.until(`!document.body.innerText.includes("Run again") && document.body.innerText.includes("hi!")`)
}

// maxLooks is how many records an open list of jobs may have the farm look at in the time of a few glances, when nothing happens.
const maxLooks = 60

func TestAnOpenListAsksForLittle(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	box := f.sandbox("", map[string]any{})
	jobs := make([]map[string]any, 60)
	for i := range jobs {
		jobs[i] = map[string]any{"kind": "execute", "sandbox_id": box, "code": "1"}
	}
	call[struct{}](f, "", "POST", "/v1/jobs/batch?wait=60", map[string]any{"jobs": jobs})
	p := openPage(t, f, "#/jobs")
	p.until(`document.querySelectorAll("[data-row]").length > 10`)
	// counts what is asked for after the first page: the sum of the limits of all requests
	p.do(chromedp.Evaluate(`window.looks = 0; window.asked = 0; (() => { const real = window.fetch; window.fetch = (path, options) => { const url = new URL(path, document.baseURI); if (url.pathname.endsWith("/v1/jobs")) { window.asked += 1; window.looks += Number(url.searchParams.get("limit")); } return real(path, options); }; })()`, nil))
	p.until(`window.asked >= 4`)
	if looks := value[int](p, `window.looks`); looks > maxLooks {
		t.Errorf("four requests look at %d records", looks)
	}
	f.execute("", box, "print('new one')")
	p.sees("new one")
}

func TestAnAddressOfNothingSaysSo(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	job := f.run("", "open('a.txt', 'w').write('1')")
	p := openPage(t, f, "#/artifacts/art_nope")
	for hash, want := range map[string][2]string{
		"#/artifacts/art_nope":         {`There is no artifact "art_nope".`, "All artifacts"},
		"#/sandboxes/sbx_nope/details": {`There is no sandbox "sbx_nope".`, "All sandboxes"},
		"#/jobs/job_nope":              {`There is no job "job_nope".`, "All jobs"},
		"#/jobs/job_nope/x":            {"There is no such page", "Go to the playground"},
		"#/sandbox/sbx_nope":           {"There is no such page", "Go to the playground"},
		"#/farm/nope":                  {"There is no such page", "Tenants"},
		"#/sandboxes/" + f.sandbox("", map[string]any{}) + "/nope": {"There is no such page", "Notebook"},
	} {
		p.goTo(hash)
		p.sees(want[0])
		p.until(fmt.Sprintf(`[...document.querySelectorAll("main a")].some((one) => one.innerText.includes(%q))`, want[1]))
	}
	p.goTo("#/artifacts")
	p.sees("a.txt")
	p.goTo("#/artifacts/" + call[struct{ Items []struct{ ID string } }](f, "", "GET", "/v1/artifacts", nil).Items[0].ID)
	p.sees("a.txt")
	p.until(`/^run: open\('a.txt', 'w'\).write\('1'\) .*20\d\d/.test(document.querySelector(".group h2").innerText)`)
	p.click(".group h2 a")
	p.until(`location.hash === "#/jobs/` + job.ID + `"`)
}
