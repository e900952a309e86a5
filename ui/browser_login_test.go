//go:build browser

package ui_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
)

func TestLogInAndOut(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	mine, theirs := f.run(acme, "print('mine')"), f.run(rival, "print('theirs')")
	p := openPage(t, f, "#/jobs/"+mine.ID)
	p.sees("Log in with an API key")
	p.sees("The operator makes keys with sandfarm key create. The first one is made on the farm's host, with the farm's SANDFARM_DATA if it is set there: sandfarm key create --local --tenant default --scope admin --scope run")
	p.accessible("log-in")
	p.fill("input[name=key]", "not a key")
	p.click("button[type=submit]")
	p.sees("This key is not valid")
	p.sees("not a valid API key")
	p.logIn(acme)
	p.sees(mine.ID) // the page that was asked for
	p.sees("mine")
	p.until(`/Memory\s+2.0 GiB\s+Cores\s+2\s/.test(document.querySelector(".job-page .facts").innerText)`)
	if got := value[string](p, `document.cookie`); got != "" {
		t.Errorf("a script reads the cookie: %s", got)
	}
	p.goTo("#/jobs/" + theirs.ID)
	p.sees("That did not work")
	if text := value[string](p, `document.body.innerText`); strings.Contains(text, "print('theirs')") {
		t.Errorf("the page shows another tenant's job: %s", text)
	}
	p.click("#logout")
	p.until(`document.activeElement.name === "key" && !document.body.innerText.includes("revoked")`)
	if status := value[int](p, `fetch("v1/jobs").then((answer) => answer.status)`); status != 401 {
		t.Errorf("after the log-out jobs are answered %d", status)
	}
	p.logIn(acmeReads)
	p.clickText("Usage") // who is no operator sees what the own tenant uses
	p.sees("What is used now")
	p.sees("acme")
	p.accessible("usage")
	p.goTo("#/")
	p.sees("Your key may only read")
	p.until(`document.querySelector("#run").disabled`)
	made := call[struct {
		Secret string
		Key    record
	}](f, operator, "POST", "/v1/keys", map[string]any{"tenant": "acme", "scopes": []string{"read"}})
	p.click("#logout")
	p.logIn(made.Secret)
	p.goTo("#/jobs")
	p.sees(mine.State)
	call[struct{}](f, operator, "DELETE", "/v1/keys/"+made.Key.ID, nil)
	p.sees("Your key was revoked or has expired. Log in with another.")
	p.until(`document.activeElement.name === "key"`)
	p.accessible("a key that has ended")
	p.logIn(acme)
	p.sees(mine.State) // the page that was looked at
	own := call[struct {
		Secret string
		Key    record
	}](f, operator, "POST", "/v1/keys", map[string]any{"tenant": "acme", "scopes": []string{"admin"}})
	p.click("#logout")
	p.logIn(own.Secret)
	p.goTo("#/farm/keys")
	p.sees(own.Key.ID)
	p.do(chromedp.Evaluate(`window.confirm = () => true; [...document.querySelectorAll("tbody tr")].find((one) => one.innerText.includes("`+own.Key.ID+`")).querySelector("button").click()`, nil))
	p.sees("Log in with an API key") // who revokes the own key is logged out at once
}

// A result of a sandbox must not reach a network by the browser of who looks at it: not by what a policy of content does not cover (WebRTC and
// connections ahead).
func TestAPageOfAResultReachesNothing(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	var reached atomic.Int32
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			_ = conn.Close()
		}
	}()
	try := strings.ReplaceAll(`
const link = document.createElement("link");
link.rel = "preconnect"; link.href = "http://ADDRESS/"; document.documentElement.append(link);
const call = new RTCPeerConnection({ iceServers: [{ urls: "turn:ADDRESS?transport=tcp", username: "u", credential: "c" }] });
call.createDataChannel("x");
await call.setLocalDescription(await call.createOffer());
while (call.iceGatheringState !== "complete") await new Promise((done) => { call.onicegatheringstatechange = done; });
`, "ADDRESS", tcp.Addr().String())
	source, err := json.Marshal(`<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" height="300" width="1"><p id="end"></p><script type="module">` +
		try + `document.getElementById("end").style.height = "300px";</script>`)
	if err != nil {
		t.Fatal(err)
	}
	job := f.run("", "from IPython.display import HTML, display\ndisplay(HTML("+string(source)+"))")
	p := openPage(t, f, "#/jobs/"+job.ID)
	p.expect("llowlist")                                                 // what was refused
	p.until(`document.querySelector("iframe.page")?.clientHeight > 500`) // the picture is there, and the script has ended
	if n := reached.Load(); n != 0 {
		t.Errorf("the page connected %d times", n)
	}
}

// hostile is text that would run if anything took it for HTML. It sets a variable of the page that shows it.
const hostile = `<img src=x onerror="top.hacked=1"><script>top.hacked=1</script>`

func TestNothingThatCodeWritesRuns(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	job := f.run(acme, `
import sys
from IPython.display import HTML, SVG, Markdown, display
bad = '''`+hostile+`'''
print(bad)
print(bad, file=sys.stderr)
open("<img src=x onerror=top.hacked=1>.txt", "w").write("x")
display(HTML(bad + "<p id='shown'>a page</p><a href='javascript:top.hacked=1' target='_top'>x</a><script>document.body.dataset.ran=1; try { parent.document.body.dataset.hacked=1 } catch (e) { document.body.append('kept out') }</script>"))
display(HTML("<table><tr><td>" + "<b onclick='top.hacked=1'>cell</b>" + "</td></tr></table>"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' width='50' height='50' onload='top.hacked=1'><script>top.hacked=1</script><rect width='50' height='50'/></svg>"))
display(Markdown(bad))
raise ValueError(bad)
`)
	p := openPage(t, f, "#/jobs/"+job.ID)
	p.expect("Content Security Policy") // of what the hostile page tries
	p.expect("Blocked")
	p.expect("violates")
	p.logIn(acme)
	p.sees("ValueError")
	p.sees(`onerror=top.hacked=1>.txt`)
	p.until(`document.querySelectorAll("iframe.page").length === 1`)
	p.until(`document.querySelectorAll("figure.table td").length === 1`)
	p.until(`[...document.querySelectorAll(".picture img")].some((one) => one.complete && one.naturalWidth === 50)`)
	p.until(`document.querySelector("iframe.page").clientHeight > 24`) // the frame has said how high its page is, so its scripts have run
	if got := value[string](p, `String(window.hacked) + document.body.dataset.hacked`); got != "undefinedundefined" {
		t.Errorf("something ran: %s", got)
	}
	if got := value[bool](p, `(() => { try { return Boolean(document.querySelector("iframe.page").contentDocument) } catch { return false } })()`); got {
		t.Error("the frame has the page's origin")
	}
	p.goTo("#/jobs")
	p.sees("completed")
	if got := value[string](p, `String(window.hacked)`); got != "undefined" {
		t.Errorf("something ran in the list: %s", got)
	}
	p.goTo("#/jobs/" + "%3Cimg%20src%3Dx%20onerror%3Dtop.hacked%3D1%3E")
	p.sees("That did not work")
	if got := value[string](p, `String(window.hacked)`); got != "undefined" {
		t.Errorf("something ran from the address: %s", got)
	}
}

// counts prints numbers until a file is there.
const counts = `
import os, time
n = 0
while not os.path.exists("enough"):
    n += 1
    print("line", n, flush=True)
    time.sleep(0.2)
print("the end after", n)
`

func TestAJobIsFollowedWhileItsWorkerIsKilled(t *testing.T) {
	t.Parallel()
	parts := faulttest.New(t, faulttest.Config{Program: program(), MinIO: os.Getenv("SANDFARM_TEST_MINIO"), Schedulers: 1})
	box := parts.Box(wire.CreateRequest{Name: "counting"})
	f := &testFarm{t: t, url: parts.URL()}
	job := call[record](f, "", "POST", "/v1/sandboxes/"+box+"/execute", map[string]any{"code": counts, "timeout_seconds": 600})
	p := openPage(t, f, "#/jobs/"+job.ID)
	p.sees("line 3")
	p.sees("running")
	parts.Kill(parts.Workers()...)
	before := value[int](p, last)
	parts.Start(parts.Workers()...)
	parts.AwaitReady()
	p.until(fmt.Sprintf(`%s > %d`, last, before+20))
	call[struct{}](f, "", http.MethodPut, "/v1/sandboxes/"+box+"/fs/workspace/enough", nil)
	p.sees("the end after")
	p.until(`Boolean(document.querySelector(".bar-head .badge.good"))`)
	p.sees("2: another worker took it over")
	lines := strings.Split(strings.TrimSpace(value[string](p, `document.querySelector(".output pre.text").textContent`)), "\n")
	for i, line := range lines[:len(lines)-1] {
		if want := fmt.Sprintf("line %d", i+1); line != want {
			t.Fatalf("the page shows %q where %q belongs", line, want)
		}
	}
	if want := fmt.Sprintf("the end after %d", len(lines)-1); lines[len(lines)-1] != want {
		t.Errorf("the page ends with %q instead of %q", lines[len(lines)-1], want)
	}
	p.accessible("a job that was taken over")
}

// last is the number of the last line on the page.
const last = `Number(([...document.querySelectorAll(".output pre.text")].map((one) => one.textContent).join("").match(/line (\d+)\n(?!.*line \d+\n)/s) || [0, 0])[1])`
