//go:build browser

package ui_test

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
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
	case <-time.After(timeout):
		t.Error("the picture opens in no tab of its own")
	}
	p.until(`[...document.querySelectorAll(".artifacts img")].every((one) => one.complete && one.naturalWidth > 100)`)
	p.until(`getComputedStyle(document.querySelector(".artifacts img")).filter === "none"`)
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
	p.until(`document.activeElement.id === "main"`) // the row that had the focus is gone
	p.until(`document.title === "t = np.linspace(0, 12 * np.pi, 2000) · run · Sandfarm"`)
	p.until(`[...document.querySelectorAll(".picture img")].some((one) => one.complete && one.naturalWidth > 100)`)
	p.until(`getComputedStyle(document.querySelector(".picture img")).filter === "brightness(0.9)"`)
	p.shot("job")
	p.accessible("job")
	p.goTo("#/jobs")
	p.sees("completed")
	p.accessible("jobs")
	if strings.Contains(value[string](p, `document.body.innerText`), "undefined") {
		t.Error("the page shows undefined")
	}
}

// TestPlaygroundWithoutANetwork loses the network between two runs: what came of the first one is gone, and so is the error once the farm is there
// again.
func TestPlaygroundWithoutANetwork(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	p := openPage(t, f, "")
	p.fill(".write textarea", "print('the ' + 'first')")
	p.click("#run")
	p.sees("the first")
	p.until(`Boolean(document.querySelector(".see .badge.good"))`)
	offline := func(yes bool) {
		p.do(chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := network.EmulateNetworkConditionsByRule(yes, []*network.Conditions{{DownloadThroughput: -1, UploadThroughput: -1}}).Do(ctx)
			return err
		}))
	}
	offline(true)
	p.fill(".write textarea", "print('the ' + 'second')")
	p.click("#run")
	p.sees("The farm cannot be reached.")
	p.until(`!document.querySelector(".see .badge") && !document.querySelector(".see").innerText.includes("the first")`)
	offline(false)
	p.until(`!document.querySelector(".see [role=alert]")`)
	p.click("#run")
	p.sees("the second")
	p.until(`!document.querySelector(".see [role=alert]") && Boolean(document.querySelector(".see .badge.good"))`)
	offline(true)
	p.goTo("#/usage") // whose script is not there yet
	p.sees("The farm does not answer")
	p.until(`Boolean(document.querySelector(".health.bad"))`)
	p.clickText("Try again")
	p.sees("The farm does not answer")
	p.shot("away")
	offline(false)
	if _, err := chromedp.RunResponse(p.ctx, chromedp.Click("main .after button", chromedp.ByQuery)); err != nil {
		t.Fatal(err)
	}
	p.sees("What is used now")
	p.until(`Boolean(document.querySelector(".health.good"))`)
	p.goTo("#/sandboxes/" + f.sandbox("", map[string]any{}) + "/notebook")
	p.fill(".next textarea", "import time\nprint('it ' + 'runs', flush=True)\ntime.sleep(600)")
	p.click("#run")
	p.sees("it runs")
	p.until(`Boolean(document.querySelector(".cell [role=timer]"))`)
	offline(true)
	p.until(`document.querySelector(".cell").innerText.includes("The farm cannot be reached. Trying again") && !document.querySelector(".cell [role=timer]")`)
	offline(false)
	p.until(`Boolean(document.querySelector(".cell [role=timer]")) && !document.querySelector(".cell").innerText.includes("Trying again")`)
}

// A tenant whose quota is smaller than the default sandbox can run code in a smaller one.
func TestASmallTenantRunsCode(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t, "SANDFARM_QUOTAS_MAX_MEMORY_MB=1024"), "")
	p.size(1360, 900, "light")
	p.fill(".write textarea", "print('in ' + 'a small one')")
	const memory = ".write .means .field:nth-of-type(2) input"
	p.until(`document.querySelector(".write .means").open === false`)
	p.click("#run")
	p.sees("The quota “Memory” of your tenant allows 1024")
	p.sees("Ask for less memory, or ask the farm's operator to raise it.")
	p.until(`document.querySelector(".write .means").open`)
	p.fill(memory, "1")
	p.click("#run")
	p.sees("“Memory, MiB” is 1; it must be from")
	p.accessible("options")
	const cpus = ".write .means .field:nth-of-type(3) input"
	p.fill(memory, "99999999")
	p.fill(cpus, "500")
	p.click("#run")
	p.until(`/^That did not work\s+“Memory, MiB” is 99999999; it must be from 64 to \d+\s+“Cores” is 500; it must be from [\d.]+ to [\d.]+\s+Request/.test(document.querySelector(".see .error")?.innerText)`)
	p.fill(cpus, "")
	p.fill(memory, "512")
	p.click("#run")
	p.sees("in a small one")
	p.clickText("The same by")
	p.click(".means .choices button:nth-child(2)")
	p.sees("sandfarm run - --memory 512m <<")
	p.shot("options")
	p.fill(".write textarea", "b'x' * 2**30")
	p.click("#run")
	p.sees("or run it with more memory (Options of the playground, or New sandbox).")
	p.until(`location.hash.startsWith("#/run/job_")`)
	p.fill(memory, "1")
	p.click("#run")
	p.sees("“Memory, MiB” is 1; it must be from")
	p.until(`location.hash === "#/" && document.querySelector(".write textarea").value === "b'x' * 2**30"`)
}

// progressFirst is news of an installer before all other events of a job.
const progressFirst = `window.EventSource = class extends EventSource {
  constructor(url) {
    super(url);
    setTimeout(() => this.dispatchEvent(new MessageEvent("progress", { data: JSON.stringify({ message: "Installing nothing", done: 0, total: 0 }) })));
  }
}`

func TestProgressEndsWithTheFirstOutput(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	box := f.sandbox("", map[string]any{})
	p := openPage(t, f, "")
	p.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(progressFirst).Do(ctx)
		return err
	}), chromedp.Reload())
	p.goTo("#/sandboxes/" + box)
	p.fill(".next textarea", "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.1)\nprint('it ' + 'prints')\ntime.sleep(600)")
	p.click("#run")
	p.sees("Installing nothing")
	call[struct{}](f, "", http.MethodPut, "/v1/sandboxes/"+box+"/fs/workspace/go", nil) // which does not wait for the code
	p.sees("it prints")
	p.until(`!document.querySelector(".progress") && document.querySelector(".cell .badge").innerText === "running"`)
}

func TestARunHasAnAddress(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	job := f.run("", "print('from ' + 'a link')")
	p := openPage(t, f, "#/run/job_nope")
	p.sees("There is no job")
	p.until(`!document.querySelector(".see .badge")`)
	p.goTo("#/run/" + job.ID)
	p.until(`document.querySelector(".write textarea")?.value === "print('from ' + 'a link')"`)
	p.sees("from a link")
	p.until(`document.querySelector(".main-nav [aria-current]")?.innerText === "Playground"`)
	p.fill(".write textarea", "print('a ' + 'new one')")
	p.click("#run")
	p.sees("a new one")
	p.until(`location.hash.startsWith("#/run/job_") && location.hash !== "#/run/` + job.ID + `"`)
	p.fill(".write textarea", "print('not run')")
	p.until(`sessionStorage.getItem("sandfarm.draft").includes("not run")`) // it is kept after the next frame
	p.do(chromedp.Reload())
	p.sees("a new one")
	p.until(`document.querySelector(".write textarea")?.value === "print('not run')"`) // what was written after the run is not lost
	p.do(chromedp.NavigateBack())
	p.sees("from a link")
	p.until(`document.querySelector(".write textarea")?.value === "print('from ' + 'a link')"`)
}

func TestAMissingModuleIsInstalled(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t, "SANDFARM_WORKER_AUTO_INSTALL_DENY=nosuchmodule"), "") // so that the test needs no package index
	p.fill(".write textarea", "import nosuchmodule")
	p.click("#run")
	p.sees("Install nosuchmodule and run again")
	p.sees("The module nosuchmodule is not installed: install the package that provides it, most often of the same name (packages).")
	p.accessible("missing module")
	first := value[string](p, `location.hash`)
	p.click("#install")
	p.until(`location.hash !== "` + first + `" && Boolean(document.querySelector(".see .exception"))`)
	if !value[bool](p, `fetch("v1/jobs/" + location.hash.split("/")[2]).then((answer) => answer.json()).then((job) => job.request.auto_install === true)`) {
		t.Error("the second run installs nothing")
	}
	p.sees("failed nosuchmodule")
	p.until(`document.querySelector(".see .badge.bad").innerText === "ModuleNotFoundError"`)
	p.until(`!document.querySelector("#install")`) // once is enough
	p.goTo(strings.Replace(first, "#/run/", "#/jobs/", 1))
	p.sees("most often of the same name (packages).") // there is no auto_install here either

	box := p.farm.sandbox("", map[string]any{})
	p.goTo("#/sandboxes/" + box)
	p.fill(".next textarea", "import nosuchmodule")
	p.click("#run")
	p.sees("Install nosuchmodule and run again")
	p.sees("most often of the same name (Packages of the sandbox).")
	p.click("#install")
	p.until(`document.querySelectorAll(".cell:not(.next)").length === 2 && document.querySelectorAll(".cell .exception").length === 2 && document.querySelectorAll("#install").length === 1`)
}

func TestARunWithAPackageThatFailedIsNotGreen(t *testing.T) {
	t.Parallel()
	f := startFarm(t, "SANDFARM_WORKER_AUTO_INSTALL_DENY=nosuchmodule") // so that the test needs no package index
	job := call[record](f, "", "POST", "/v1/run?wait=60", map[string]any{"code": "if len('') > 2:\n    import nosuchmodule\nprint('goes on')", "auto_install": true})
	p := openPage(t, f, "#/run/"+job.ID)
	want := "completed, a package failed"
	p.until(`[...document.querySelectorAll(".see header .badge")].map((one) => one.innerText).join(", ") === "` + want + `"`)
	p.until(`!document.querySelector(".see header .badge.good")`)
	p.clickText("Open the job")
	p.until(`[...document.querySelectorAll(".job-page header .badge")].map((one) => one.innerText).join(", ") === "` + want + `"`)
}

func TestThePlaygroundSaysWhereCodeRunsAndHowLong(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	box := f.sandbox("", map[string]any{"name": "analysis"})
	p := openPage(t, f, "")
	p.sees("The code runs in a fresh sandbox of its own.")
	call[record](f, "", "POST", "/v1/run", map[string]any{"code": "import time\ntime.sleep(600)"})
	p.goTo("#/sandboxes")
	p.until(`[...document.querySelectorAll(".row.box")].some((row) => /closes with its run/.test(row.innerText) && /ready/.test(row.innerText))`)
	other := f.sandbox("", map[string]any{"name": "made last"})
	p.goTo("#/")
	p.until(`[...document.querySelectorAll("[aria-label=Sandbox] option")].map((one) => one.innerText).join() === "a fresh sandbox,made last,analysis"`) // that of the run is left out
	p.choose(`[aria-label="Sandbox"]`, box, 0)
	p.sees("The code runs in the sandbox analysis, with its variables and files.")
	p.fill(".write textarea", "import time\ntime.sleep(600)")
	p.click("#run")
	p.until(`/^[1-9][.0-9]* s$/.test(document.querySelector(".see [role=timer]")?.innerText)`)
	p.goTo("#/sandboxes/" + box)
	p.until(`/^[1-9][.0-9]* s$/.test(document.querySelector(".cell [role=timer]")?.innerText)`)
	p.goTo("#/")
	p.choose(`[aria-label="Sandbox"]`, "", 0)
	p.clickText("Options")
	p.fill(".means input", "1")
	p.click("#run")
	p.sees("The job was stopped after its timeout of 1 second; output and files until then are kept. A run in the playground can have a longer timeout, under Options below its code.")
	p.shot("timeout")
	if seen := value[string](p, `document.querySelector(".see").innerText`); strings.Contains(seen, "Stopped.") {
		t.Errorf("the end is told twice: %s", seen)
	}
	p.click(".see a.end") // its page says the same
	p.until(`/A run in the playground can have a longer timeout, under Options/.test(document.querySelector(".job-page .error")?.innerText)`)
	job := call[record](f, "", "POST", "/v1/sandboxes/"+other+"/commands?wait=60", map[string]any{"command": "sleep 600", "timeout_seconds": 1})
	p.goTo("#/jobs/" + job.ID)
	p.until(`/A command has a longer timeout with --timeout of sandfarm exec, or timeout_seconds /.test(document.querySelector(".job-page .error")?.innerText)`)
}

func TestOutputFollowsItsEnd(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.size(1360, 900, "light")
	p.fill(".write textarea", "import time\ni = 0\nwhile True:\n    i += 1\n    print('line', i, flush=True)\n    time.sleep(0.02)")
	p.click("#run")
	p.do(chromedp.DoubleClick(".controls .danger", chromedp.ByQuery)) // the second click of a double click on Run
	const lines = `document.querySelector(".see pre.text").innerText.split("\n").length`
	const ends = `[".see", ".see pre.text"].every((one) => { const box = document.querySelector(one); return box.scrollTop + box.clientHeight >= box.scrollHeight - 2 })`
	p.until(`Boolean(document.querySelector(".see pre.text")) && ` + lines + ` > 100 && ` + ends)
	const press = `document.querySelector(".write textarea").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true }))`
	p.do(chromedp.Evaluate(press, nil))
	p.sees("A run is going: stop it first.")
	p.do(chromedp.Evaluate(`document.querySelector(".see pre.text").scrollTop = 50`, nil))
	seen := value[int](p, lines)
	p.until(fmt.Sprintf("%s > %d", lines, seen+50))
	if top := value[int](p, `document.querySelector(".see pre.text").scrollTop`); top != 50 {
		t.Errorf("who has scrolled up to 50 is taken to %d", top)
	}
	seen = value[int](p, lines) // whose end moves on while one scrolls to it
	p.until(fmt.Sprintf(`(() => { document.querySelector(".see pre.text").scrollTop = 1e6; return %s > %d })()`, lines, seen+30))
	p.until(fmt.Sprintf("%s > %d && %s", lines, seen+50, ends))
	p.click(".controls .danger")
	p.sees("Stopped.")
	p.until(ends)
	p.fill(".write textarea", "")
	p.until(`document.querySelector(".said").innerText === ""`)
	p.do(chromedp.Evaluate(press, nil))
	p.sees("There is no code.")
}

// The farm sends only the first 8 MiB of output as events.
func TestTheEndOfLongOutputIsShown(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.size(1360, 900, "light")
	p.fill(".write textarea", "for i in range(200000):\n    print('line', i, 'x' * 60)")
	p.click("#run")
	const ends = `(() => {
		const box = document.querySelector(".output pre.text"), link = document.querySelector(".output a.whole");
		return Boolean(link) && link.innerText === "stdout.txt" && /line 199999 x{60}\s*$/.test(box.innerText) && box.innerText.length <= 200000 && box.scrollTop + box.clientHeight >= box.scrollHeight - 2;
	})()`
	p.until(ends)
	p.shot("long-output")
	if file := p.download(".output a.whole"); !bytes.HasPrefix(file, []byte("line 0 x")) || !bytes.HasSuffix(file, []byte("x\n")) {
		t.Errorf("the whole is another file: %.40q, %d bytes", file, len(file))
	}
	p.clickText("Open the job")
	p.until(ends)
}

func TestAnExampleCanBeTakenBack(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	const code = `document.querySelector(".write textarea")?.value`
	p.until(code + `.startsWith("import numpy")`)
	p.do(chromedp.Focus(".write textarea", chromedp.ByQuery), chromedp.Evaluate(`document.querySelector(".write textarea").select(); document.execCommand("insertText", false, "print('mine')")`, nil))
	p.choose(".write select", "shell", 0)
	p.until(code + `.startsWith("echo ") && document.querySelector("[aria-label=Language]").value === "bash"`)
	p.do(chromedp.Evaluate(`document.execCommand("undo")`, nil))
	p.until(code + ` === "print('mine')" && document.querySelector(".editor pre").innerText.startsWith("print('mine')")`)
}

func TestStopIsNoError(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.fill(".write textarea", "import time\nprint('it runs')\ntime.sleep(600)")
	p.click("#run")
	p.sees("it runs")
	p.clickText("Stop")
	p.sees("Stopped. What it showed")
	p.until(`!document.querySelector(".see .exception, .see .error, .see .badge.bad")`)
	p.clickText("Open the job")
	p.sees("Stopped. What it showed")
	p.until(`!document.querySelector("main .exception, main .error, main .badge.bad")`)
}

// edges says how much darker or lighter the right edge of the editor is than its left one, at a line without text.
func edges(p *page) int {
	p.t.Helper()
	rect := value[[]float64](p, `(() => { const r = document.querySelector(".editor").getBoundingClientRect(); return [r.left, r.right, r.bottom] })()`)
	var picture []byte
	p.do(chromedp.CaptureScreenshot(&picture))
	shown, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		p.t.Fatal(err)
	}
	left, _, _, _ := shown.At(int(rect[0])+4, int(rect[2])-30).RGBA()
	right, _, _, _ := shown.At(int(rect[1])-4, int(rect[2])-30).RGBA()
	return (int(right) - int(left)) / 0x101
}

func TestLongLinesShowThatTheyGoOn(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.size(1280, 900, "light")
	p.fill(".write textarea", "short")
	if got := edges(p); got != 0 {
		t.Errorf("without a long line the edges differ by %d", got)
	}
	p.fill(".write textarea", strings.Repeat("long ", 100))
	if got := edges(p); got > -10 || got < -40 { // it is seen, and so is the code below it
		t.Errorf("with a long line the edges differ by %d", got)
	}
	p.do(chromedp.Evaluate(`{ const area = document.querySelector(".write textarea"); area.scrollLeft = area.scrollWidth }`, nil))
	p.until(`(() => { const pre = document.querySelector(".editor pre"); return pre.scrollLeft > 0 && pre.scrollLeft + pre.clientWidth >= pre.scrollWidth - 1 })()`)
	if got := edges(p); got != 0 {
		t.Errorf("at the end of the line the edges differ by %d", got)
	}
}

func TestWhatDoesNotScrollHasNoShadow(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "#/farm/overview")
	p.until(`Boolean(document.querySelector(".scroll tbody tr"))`)
	const measure = `[".tabs", ".scroll"].map((one) => document.querySelector(one)).filter((one) => one.scrollWidth <= one.clientWidth).map((one) => { const r = one.getBoundingClientRect(); return [r.right, r.bottom - 8] })`
	for _, scale := range []float64{1, 1.25, 1.5} { // by which edges fall within a pixel of the screen
		for _, width := range []int64{1024, 1281, 1366} {
			p.do(chromedp.EmulateViewport(width, 1400, chromedp.EmulateScale(scale)))
			var edges [][]float64
			var picture []byte
			for before := [][]float64{nil}; !cmp.Equal(edges, before); { // the page moves while its parts arrive
				before = value[[][]float64](p, measure)
				p.do(chromedp.CaptureScreenshot(&picture))
				edges = value[[][]float64](p, measure)
			}
			shown, err := png.Decode(bytes.NewReader(picture))
			if err != nil {
				t.Fatal(err)
			}
			if len(edges) == 0 {
				t.Errorf("%d wide at %v: all scrolls", width, scale)
			}
			for _, edge := range edges {
				y := int(edge[1] * scale)
				want := shown.At(int((edge[0]+4)*scale), y) // beside the box
				for x := int((edge[0] - 4) * scale); x < int((edge[0]+2)*scale); x++ {
					if got := shown.At(x, y); got != want {
						t.Errorf("%d wide at %v: the pixel %d of the edge %v is %v, not %v", width, scale, x, edge, got, want)
					}
				}
			}
		}
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

// A result that is HTML may not take its frame to another page of the farm, such as that of a port, which reaches the network. (Chromium forbids that by the
// frame's Connection-Allowlist already.)
func TestFramesHoldPagesOfTheDashboardOnly(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "#/")
	p.expect("frame-src")
	for page, refused := range map[string]bool{"ui/frame.html": false, "docs": true} {
		if got := value[bool](p, `new Promise((done) => {
			const frame = Object.assign(document.createElement("iframe"), { src: "`+page+`" });
			addEventListener("securitypolicyviolation", (e) => done(e.effectiveDirective === "frame-src"), { once: true });
			frame.addEventListener("load", () => setTimeout(() => done(false), 100));
			document.body.append(frame);
		})`); got != refused {
			t.Errorf("%s: refused: %v", page, got)
		}
	}
}

// JSON is base64 in the record.
func TestJSONIsShownAsText(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	job := f.run("", `
from IPython.display import JSON, display
display(JSON({"é": [1]}))
`)
	p := openPage(t, f, "#/jobs/"+job.ID)
	p.until(`[...document.querySelectorAll("pre.code")].some((one) => one.textContent === '{\n  "é": [\n    1\n  ]\n}')`)
}
