//go:build browser

package ui_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

func TestASandboxesPage(t *testing.T) {
	t.Parallel()
	f := startFarm(t, append(withKeys(), "SANDFARM_WORKER_RECONCILE_EVERY=2s", "SANDFARM_EGRESS_ALLOW=api.example.com")...)
	p := openPage(t, f, "#/sandboxes")
	p.size(1360, 900, "light")
	p.logIn(acme)
	p.sees("No open sandboxes")
	p.clickText("New sandbox")
	p.until(`Boolean(document.activeElement.matches("dialog input[type=text]"))`)
	p.fill("dialog input[type=text]", "analysis")
	p.clickText("Create")
	p.sees("Nothing has run here yet")
	p.until(`document.activeElement.id === "main"`)           // the dialog that had the focus is gone
	p.until(`Boolean(document.querySelector(".badge.good"))`) // ready
	p.fill(".next textarea", "import pandas as pd\nscores = pd.DataFrame({'name': ['Ada', 'Grace', 'Katherine'], 'score': [91.5, 88.25, 97]})\nscores.to_csv('scores.csv', index=False)\nprint('\\x1b[32mthree scores\\x1b[0m')\nscores")
	p.click("#run")
	p.sees("Katherine")
	p.until(`Boolean(document.querySelector(".cell .a-f2"))`)
	p.fill(".next textarea", "scores.score.mean()")
	p.click("#run")
	p.sees("92.25")
	p.shot("sandbox")
	p.accessible("notebook")
	id := strings.Split(value[string](p, `location.hash`), "/")[2]

	p.goTo("#/sandboxes/" + id + "/files")
	p.clickText("scores.csv")
	p.until(`document.querySelectorAll(".table tbody tr").length === 3 && !document.body.innerText.includes("Only the beginning")`)
	upload := filepath.Join(t.TempDir(), "ünïcode & <b>.txt")
	if err := os.WriteFile(upload, []byte("from the browser\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.SetUploadFiles(`input[type=file]`, []string{upload}, chromedp.ByQuery))
	p.sees("ünïcode & <b>.txt")
	p.clickText("ünïcode & <b>.txt")
	p.sees("from the browser")
	if got := p.download(".files section:last-of-type a[download]"); string(got) != "from the browser\n" {
		t.Errorf("the download is %q", got)
	}
	p.accessible("files")
	archive := p.download("#zip")
	files, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil || len(files.File) != 2 || files.File[0].Name != "scores.csv" {
		t.Errorf("the zip has %d bytes, %v, %v", len(archive), files, err)
	}
	f.execute(acme, id, "import os\nos.makedirs('raw/2024 #1?&')\nopen('raw/2024 #1?&/100 % + more.txt', 'w').write('deep')")
	const deep = `[...document.querySelectorAll(".path a")].map((one) => one.innerText).join(" > ") === "workspace > raw > 2024 #1?&"`
	p.clickText("raw")
	p.clickText("2024 #1?&")
	p.clickText("100 % + more.txt")
	p.sees("deep")
	p.do(chromedp.Reload())
	p.sees("deep")
	p.until(deep)
	p.do(chromedp.Evaluate(`history.back()`, nil))
	p.until(deep + ` && !document.body.innerText.includes("deep")`)
	p.do(chromedp.Evaluate(`history.back()`, nil))
	p.until(`document.querySelectorAll(".path a").length === 2`)

	p.goTo("#/sandboxes/" + id + "/packages")
	p.sees("matplotlib")
	p.fill("input[type=search]", "pand")
	p.until(`document.querySelectorAll("table.grid tbody tr").length === 1`)
	p.fill("input[type=search]", "no such name")
	p.sees("No package has such a name.")
	p.sees("of 2.0 GiB by programs")
	p.until(`Boolean(document.querySelector(".use polyline"))`)
	p.accessible("packages")
	call[record](f, acme, "POST", "/v1/sandboxes/"+id+"/processes", map[string]any{"command": "sleep 1000; echo " + strings.Repeat("on-and-on ", 30)})
	p.goTo("#/sandboxes/" + id + "/processes")
	p.sees("on-and-on")
	p.accessible("processes")
	p.size(1280, 900, "light")
	p.until(`(() => { const { scrollWidth, clientWidth } = document.querySelector(".scroll"); return scrollWidth <= clientWidth })()`) // a long command takes the room that is left
	p.until(`/^prc_/.test(document.querySelector("td span[title^=prc_]")?.innerText)`)
	p.size(1360, 900, "light")
	const rows = `[...document.querySelectorAll("tbody tr")].map((row) => [row.children[1].innerText, Boolean(row.querySelector("button"))])`
	p.until(`(() => { const rows = ` + rows + `; return rows.length > 1 && rows.every(([command, ends]) => ends === (command !== "/sandfarm/agent files")) })()`)
	p.shot("processes")
	p.goTo("#/sandboxes/" + id + "/ports")
	p.sees("Nothing listens")
	p.goTo("#/sandboxes/" + id + "/details")
	p.sees("Deadline")
	p.until(`document.title === "analysis · Details · Sandbox · Sandfarm"`)
	p.accessible("details")
	p.size(390, 844, "light")
	p.goTo("#/sandboxes/" + id)
	p.sees("92.25")
	const newest = `scrollY > 0 && document.querySelector(".next").getBoundingClientRect().bottom <= innerHeight && document.querySelector(".tabs").getBoundingClientRect().top === 0`
	p.until(newest)
	p.do(chromedp.Evaluate(`scrollTo(0, 0)`, nil))
	f.execute(acme, id, "print('from elsewhere')")
	p.sees("from elsewhere")
	p.until(`scrollY === 0`) // who has scrolled up stays there
	p.fill(".next textarea", "print('from ' + 'here')")
	p.do(chromedp.Evaluate(`document.querySelector("#run").click()`, nil)) // without a look at it
	p.sees("from here")
	p.until(newest)
	p.goTo("#/sandboxes/" + id + "/details")
	p.until(`(() => { const strip = document.querySelector(".tabs"), tab = strip.querySelector("[aria-current]"); return tab.innerText === "Details" && tab.getBoundingClientRect().right <= strip.getBoundingClientRect().right })()`)
	p.size(1360, 900, "light")
	p.goTo("#/sandboxes")
	p.sees("analysis")
	p.until(`document.querySelectorAll(".row.box .sparks svg").length === 2`) // of the first samples
	p.until(`/State\s+Name\s+Image/.test(document.querySelector(".heads").innerText)`)
	p.size(1920, 900, "light")
	p.until(`document.querySelector("main").getBoundingClientRect().right === document.documentElement.clientWidth`)
	p.size(1360, 900, "light")
	p.shot("sandboxes")
	p.accessible("sandboxes")
	p.clickText("New sandbox")
	p.until(`document.querySelector("dialog option[value=allowlist]").disabled === false`)
	p.choose("dialog select", "allowlist", 1)
	p.fill("dialog textarea", "api.example.com\n*.example.org")
	p.accessible("allowlist")
	p.clickText("Create")
	p.until(`/not within what this farm allows/.test(document.querySelector("dialog textarea").closest(".field").querySelector(".wrong")?.innerText)`)
	p.until(`document.querySelectorAll("dialog .wrong").length === 1 && !document.querySelector("dialog .error") && document.activeElement.matches("dialog textarea")`) // what is wrong is said once, beside its field
	p.click("dialog header button")
	p.goTo("#/")
	p.choose(`[aria-label="Sandbox"]`, id, 0)
	p.fill(".write textarea", "'it has', scores.shape")
	p.click("#run")
	p.sees("('it has', (3, 2))")
	p.goTo("#/sandboxes/" + id + "/notebook")
	p.sees("92.25")
	p.clickText("Close")
	p.sees("Close the sandbox?")
	p.sees("scores.csv")
	p.click("#close-now")
	p.sees("closed")
	p.until(`!document.querySelector(".next")`)
	p.sees("92.25") // what was done stays
	p.clickText("create")
	p.until(`document.title.startsWith("analysis · create") && /Workspace\s+1.0 GiB/.test(document.body.innerText) && /Network\s+packages: only the package indexes/.test(document.body.innerText) && /Open at most\s+60 min/.test(document.body.innerText) && !/_seconds/.test(document.body.innerText) && !document.body.innerText.includes("Output")`)
}

func TestASandboxIsCreatedWithAllThatPeopleUse(t *testing.T) {
	t.Parallel()
	f := startFarm(t, "SANDFARM_EGRESS_ALLOW=api.example.com")
	p := openPage(t, f, "#/sandboxes")
	p.size(1360, 900, "light")
	p.clickText("New sandbox")
	const field = `[...document.querySelectorAll("dialog .field")].find((one) => one.firstElementChild.innerText === %q)`
	fill := func(label, text string) {
		t.Helper()
		p.until(fmt.Sprintf(`Boolean(%s)`, fmt.Sprintf(field, label)))
		p.do(chromedp.Evaluate(fmt.Sprintf(`document.querySelector("#asked")?.removeAttribute("id"); %s.querySelector("input, textarea").id = "asked"`, fmt.Sprintf(field, label)), nil))
		p.fill("#asked", text)
	}
	refused := func(label, text string) {
		t.Helper()
		p.until(fmt.Sprintf(`%s?.querySelector(".wrong")?.innerText.includes(%q) === true`, fmt.Sprintf(field, label), text))
	}
	p.until(`document.querySelector("dialog details").open === false`)
	p.size(390, 844, "light")
	p.until(`new Set([...document.querySelectorAll("dialog .three input")].map((one) => one.getBoundingClientRect().top)).size === 1`) // no label wraps
	p.size(1360, 900, "light")
	fill("Cores", "9000")
	p.clickText("More: ")
	p.sees("Secrets need the network")
	fill("Packages to install first", "humanize, --no-deps")
	fill("Environment variables", "MODE=a=b\n2ND=x")
	fill("Labels", "team=data")
	fill("Close when idle, in minutes", "0.01")
	p.choose("dialog select", "allowlist", 1)
	fill("Allowed hosts", "api.example.com")
	p.clickText("Add a secret")
	fill("Host", "api.example.com")
	fill("Header", "X-Api-Key")
	fill("Value", "short")
	p.until(`document.querySelectorAll("dialog input[type=password]").length === 1`)
	p.clickText("More: ") // folded, it opens for what is wrong in it
	p.until(`document.querySelector("dialog details").open === false`)
	p.clickText("Create")
	refused("Cores", "it must be from")
	refused("Packages to install first", "options, paths")
	refused("Environment variables", "2ND")
	refused("Close when idle, in minutes", "it must be")
	refused("Name", "cannot be the name of a secret")
	p.until(`document.querySelector("dialog details").open && !document.querySelector("dialog .error")`)
	p.accessible("create")
	fill("Cores", "1")
	fill("Packages to install first", "")
	fill("Environment variables", "MODE=a=b\n")
	fill("Close when idle, in minutes", "30")
	fill("Name", "TOKEN")
	p.clickText("Create")
	refused("Value", "8")
	fill("Value", "longer-than-that")
	p.clickText("Create")
	p.sees("Nothing has run here yet")
	p.goTo(value[string](p, `location.hash`) + "/details")
	p.until(`/Cores\s+1\n/.test(document.querySelector(".facts").innerText) && /Network\s+allowlist: package indexes and allowed hosts\n/.test(document.querySelector(".facts").innerText) && /Variables\s+MODE\n/.test(document.querySelector(".facts").innerText) && /Secrets\s+TOKEN\n/.test(document.querySelector(".facts").innerText) && /When idle\s+.*30 min/.test(document.querySelector(".facts").innerText)`)
	p.sees("team=data")
	p.goTo(strings.TrimSuffix(value[string](p, `location.hash`), "details") + "egress")
	p.click("#hosts")
	p.fill("form.hosts textarea", "other.example.com")
	p.clickText("Save")
	p.until(`/not within what this farm allows/.test(document.querySelector("form.hosts .wrong")?.innerText)`)
	p.accessible("hosts")
	p.shot("hosts")
	p.fill("form.hosts textarea", "GET api.example.com\nPOST api.example.com")
	p.clickText("Save")
	p.until(`document.querySelector("p.hosts code")?.innerText === "GET api.example.com, POST api.example.com"`)
	p.until(`/ of 1 core\b/.test(document.body.innerText)`)
	p.goTo("#/sandboxes")
	p.until(`/ · 1 core$/m.test(document.body.innerText)`)
}

func TestADialogAsksBeforeSomethingIsLost(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	name := strings.Repeat("long", 15)
	box := f.sandbox("", map[string]any{"name": name})
	p := openPage(t, f, "#/sandboxes/"+box)
	p.size(390, 844, "light")
	p.click(".actions .danger")
	p.until(`document.querySelector("#close-now")?.innerText === "Close it" && document.querySelector("dialog p").innerText === "` + name + `"`)
	if over := value[int](p, `document.querySelector("dialog").scrollWidth - document.querySelector("dialog").clientWidth`); over > 0 {
		t.Errorf("the dialog is %d pixels too wide", over)
	}
	p.click("dialog header button")
	p.goTo("#/sandboxes")
	p.clickText("New sandbox")
	p.until(`(() => { const one = document.querySelector("dialog option[value=allowlist]"); return one?.disabled && one.innerText.includes("egress.allow") })()`)
	if over := value[int](p, `document.querySelector("dialog").scrollWidth - document.querySelector("dialog").clientWidth`); over > 0 {
		t.Errorf("the dialog of a new sandbox is %d pixels too wide", over)
	}
	p.click("dialog header button")
	p.goTo("#/sandboxes/" + box)
	restarts := func() int {
		return value[int](p, `fetch("v1/jobs?kind=restart").then((answer) => answer.json()).then((list) => list.items.length)`)
	}
	p.clickText("Restart the kernel")
	p.sees("All its variables are lost")
	if restarts() != 0 {
		t.Error("the kernel was restarted before anybody agreed")
	}
	p.click("#restart-now")
	p.until(`!document.querySelector("dialog")`)
	if restarts() != 1 {
		t.Error("the kernel was not restarted")
	}
}

func TestAnInterruptIsNoError(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	box := f.sandbox("", map[string]any{})
	p := openPage(t, f, "#/sandboxes/"+box)
	p.fill(".next textarea", "import time\nprint('it ' + 'runs')\ntime.sleep(600)")
	p.click("#run")
	p.sees("it runs")
	p.clickText("Interrupt")
	p.sees("Stopped. What it showed")
	p.until(`!document.querySelector(".cell .exception, .cell .error, .cell .badge.bad, .cell .badge.good")`)
	p.goTo("#/jobs")
	p.sees("interrupted")
	p.until(`!document.querySelector(".row .badge.bad")`)
}

// A cell says how it ended as the page of its job does, while it is followed and after a reload; what runs can be stopped from the cell below.
func TestANotebookSaysHowItsCellsEnded(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	box := f.sandbox("", map[string]any{"packages": []string{"nonexistent-zz-0"}})
	p := openPage(t, f, "#/sandboxes/"+box)
	p.until(`document.querySelector(".note .badge.bad")?.innerText === "a package failed" && document.querySelector(".note a[href$='/packages']")?.innerText === "Packages"`)
	p.click(".next .choices button:nth-child(2)")
	p.fill(".next textarea", "sleep 600")
	p.click("#run")
	p.until(`document.querySelector(".next .danger")?.innerText === "Stop" && !document.querySelector("#run")`)
	p.fill(".next textarea", "sudo ls; exit 3")
	p.until(`Boolean(document.querySelector("#run"))`) // more can be queued
	p.click(".next .danger")
	p.until(`document.querySelector(".cell .badge")?.innerText === "canceled" && !document.querySelector(".next .danger")`)
	p.click("#run")
	ended := func(all string) {
		t.Helper()
		p.until(`[...document.querySelectorAll(".cell header")].map((one) => [...one.querySelectorAll(".badge")].map((badge) => badge.innerText).join(" ")).join() === "` + all + `"`)
		p.sees("Code in a sandbox is not root")
	}
	ended("canceled,completed exit 3")
	p.click(".next .choices button:nth-child(3)")
	p.fill(".next textarea", "nonexistent-zz-1")
	p.click("#run")
	const packages = `/^failed nonexistent-zz-1/.test(document.querySelector(".cell .plain li")?.innerText)`
	p.until(packages)
	ended("canceled,completed exit 3,completed a package failed")
	p.do(chromedp.Reload())
	p.until(packages)
	ended("canceled,completed exit 3,completed a package failed")
	// the page of a job of packages says which failed and why, that of a create, too
	for _, link := range []string{`.cell:has(.plain) header a`, `.note a[href^="#/jobs/"]`} {
		p.goTo("#/sandboxes/" + box)
		p.click(link)
		p.until(`/^failed nonexistent-zz-[01] .*\S/s.test(document.querySelector(".job-page .plain li")?.innerText)`)
	}
	p.goTo("#/sandboxes/" + box)
	p.until(packages)
	value[int](p, `fetch("v1/sandboxes/`+box+`/commands", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ command: "sleep 600", background: true }) }).then((answer) => answer.status)`)
	p.until(`[...document.querySelectorAll(".cell .badge")].pop()?.innerText === "running"`)
	p.until(`Boolean(document.querySelector("#run")) && !document.querySelector(".next .danger")`) // nothing waits for what runs in the background
}

func TestATerminal(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	box := f.sandbox(acme, map[string]any{"name": "shell"})
	f.execute(acme, box, "open('hello.txt', 'w').write('hello from a file')")
	p := openPage(t, f, "")
	p.size(1360, 900, "light")
	p.logIn(acme)
	p.goTo("#/sandboxes/" + box + "/terminal")
	p.until(`Boolean(document.querySelector("iframe.terminal")?.contentDocument?.querySelector(".xterm-rows"))`)
	p.terminalSees("$")
	p.typeInTerminal("cat hello.txt; echo; echo $((6*7)) | tr 4 F; stty size; python3 --version\r")
	p.terminalSees("hello from a file")
	p.terminalSees("F2")
	p.until(`Boolean(document.querySelector(".use polyline"))`)
	p.shot("terminal")
	p.do(chromedp.Reload())
	p.terminalSees("hello from a file") // the same shell, with what it wrote before
	p.typeInTerminal("cat hel\t")       // which the shell completes
	p.terminalSees("cat hello.txt")
	p.sees("Ctrl-M, then Tab leaves the terminal.")
	const status = `document.querySelector("iframe.terminal").contentDocument?.getElementById("status").innerText`
	ctrlM := input.DispatchKeyEvent(input.KeyDown).WithKey("m").WithModifiers(input.ModifierCtrl).WithWindowsVirtualKeyCode('M')
	p.do(ctrlM)
	p.until(status + ` === "Tab leaves the terminal."`)
	p.do(input.DispatchKeyEvent(input.KeyDown).WithKey("Tab").WithModifiers(input.ModifierShift).WithWindowsVirtualKeyCode(9))
	p.until(`Boolean(document.activeElement.closest(".tabs"))`)
	p.until(status + ` === ""`)
	p.typeInTerminal("\x03echo back $PPID; exit 3\r")
	p.terminalSees("back")
	p.until(`document.querySelector("iframe.terminal").contentDocument?.getElementById("status").innerText === "exit 3. Enter starts a new shell."`)
	p.typeInTerminal("\r")
	p.until(`!document.querySelector("iframe.terminal").contentDocument?.getElementById("status")?.innerText`)
	p.terminalSees("$")
}

func (p *page) terminalSees(text string) {
	p.t.Helper()
	p.until(`Boolean(document.querySelector("iframe.terminal")?.contentDocument?.querySelector(".xterm-rows")?.innerText.replaceAll("\u00a0", " ").includes("` + text + `"))`)
}

func (p *page) typeInTerminal(text string) {
	p.t.Helper()
	p.do(chromedp.Evaluate(`document.querySelector("iframe.terminal").contentDocument.querySelector(".xterm-helper-textarea").focus()`, nil))
	for _, r := range text { // as a keyboard does: the character is part of the key's event, so who takes the key keeps the character away
		down := input.DispatchKeyEvent(input.KeyDown).WithKey(string(r)).WithText(string(r))
		if r == '\r' {
			down = down.WithKey("Enter").WithWindowsVirtualKeyCode(13)
		} else if r == '\t' {
			down = down.WithKey("Tab").WithWindowsVirtualKeyCode(9)
		}
		p.do(down, input.DispatchKeyEvent(input.KeyUp).WithKey(down.Key))
	}
}

func TestAnotherTenantsSandboxIsNotFound(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	box := f.sandbox(rival, map[string]any{"name": "secret-plan"})
	p := openPage(t, f, "#/sandboxes/"+box)
	p.logIn(acme)
	p.sees("That did not work")
	p.goTo("#/sandboxes/" + box + "/terminal")
	p.sees("That did not work")
	if text := value[string](p, `document.body.innerText`); strings.Contains(text, "secret-plan") {
		t.Errorf("the page shows it: %s", text)
	}
	var frames []*cdp.Node
	p.do(chromedp.Nodes("iframe", &frames, chromedp.ByQueryAll, chromedp.AtLeast(0)))
	if len(frames) > 0 {
		t.Error("there is a terminal")
	}
}
