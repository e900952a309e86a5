//go:build browser && programs

package ui_test

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// finished waits until a job has ended, which must be a success. The test's own deadline bounds it.
func finished[T any](f *testFarm, id string) T {
	f.t.Helper()
	for {
		job := call[record](f, acme, "GET", "/v1/jobs/"+id+"?wait=60", nil)
		switch job.State {
		case "queued", "running":
		case "completed":
			return call[T](f, acme, "GET", "/v1/jobs/"+id, nil)
		default:
			f.t.Fatalf("job %s is %s", id, job.State)
		}
	}
}

// prepared makes a sandbox, and waits until it has its packages, however long that takes.
func (f *testFarm) prepared(fields map[string]any) string {
	f.t.Helper()
	made := call[struct{ Sandbox, Job record }](f, acme, "POST", "/v1/sandboxes", fields)
	finished[record](f, made.Job.ID)
	return made.Sandbox.ID
}

// command runs a command in a sandbox, and waits for its end, which must be a success.
func (f *testFarm) command(sandbox, text string) {
	f.t.Helper()
	type outcome struct {
		Result struct {
			Results []struct {
				ExitCode       int `json:"exit_code"`
				Stdout, Stderr string
			}
		}
	}
	job := call[record](f, acme, "POST", "/v1/sandboxes/"+sandbox+"/commands", map[string]any{"commands": []string{text}})
	done := finished[outcome](f, job.ID)
	if r := done.Result.Results; len(r) != 1 || r[0].ExitCode != 0 {
		f.t.Fatalf("%s: %+v", text, done)
	}
}

// served starts a server in a sandbox and opens its page by a link, in a tab of its own, when its port listens.
func (f *testFarm) served(t *testing.T, sandbox, command string, port int) *page {
	t.Helper()
	call[record](f, acme, "POST", "/v1/sandboxes/"+sandbox+"/processes", map[string]any{"command": command})
	type listed struct{ Items []struct{ Port int } }
	listens := func() bool {
		for _, one := range call[listed](f, acme, "GET", "/v1/sandboxes/"+sandbox+"/ports", nil).Items {
			if one.Port == port {
				return true
			}
		}
		return false
	}
	for deadline := time.Now().Add(timeout); !listens(); time.Sleep(200 * time.Millisecond) { // the poll of a readiness check
		if time.Now().After(deadline) {
			t.Fatalf("nothing listens on port %d after %s: %+v", port, command, call[any](f, acme, "GET", "/v1/sandboxes/"+sandbox+"/processes", nil))
		}
	}
	link := call[struct{ URL string }](f, acme, "POST", "/v1/sandboxes/"+sandbox+"/port-links", map[string]any{"port": port})
	if !strings.Contains(link.URL, ".localhost:") {
		t.Fatalf("the link has no origin of its own: %s", link.URL)
	}
	p := openPage(t, f, "")
	p.do(chromedp.Navigate(link.URL))
	return p
}

// streamlitApp shows a number that its slider changes, over the WebSocket of the page.
const streamlitApp = `
import streamlit as st
n = st.slider("number", 0, 10, 3)
st.write(f"square {n * n}")
`

// Real programs, as they are installed from the indexes, are used through a port by a browser.

func TestStreamlit(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	box := f.prepared(map[string]any{"packages": []string{"streamlit==1.50.0"}})
	f.upload(acme, box, "app.py", []byte(streamlitApp))
	p := f.served(t, box, "exec python3 -m streamlit run app.py --server.headless true --server.port 8501 --browser.gatherUsageStats false", 8501)
	p.sees("square 9")
	p.do(chromedp.Focus(`[role="slider"]`, chromedp.ByQuery), chromedp.KeyEvent("\u0303")) // the right arrow
	p.sees("square 16")
	p.shot("streamlit")
}

// The page of a dev server that shows a text of another module, and counts how often it was loaded.
var viteFiles = map[string]string{
	"index.html": `<!doctype html><title>dev</title><link rel="icon" href="data:,"><h1></h1><script type="module" src="/main.js"></script>`,
	"main.js": `import { text } from "./text.js";
const show = (t) => { document.querySelector("h1").textContent = t; };
window.mark = "of the first load";
show(text);
import.meta.hot.accept("./text.js", (changed) => show(changed.text));
`,
	"text.js": `export const text = "first";`,
}

func TestVite(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	box := f.prepared(map[string]any{"image": "node"})
	for name, text := range viteFiles {
		f.upload(acme, box, name, []byte(text))
	}
	f.command(box, "npm install --no-save vite@7.1.9")
	p := f.served(t, box, "exec npx vite --port 5173 --strictPort", 5173)
	p.sees("first")
	p.until(`performance.getEntriesByType("resource").some((one) => one.name.endsWith("/text.js"))`)
	f.upload(acme, box, "text.js", []byte(`export const text = "changed";`))
	p.sees("changed")
	if mark := value[string](p, `String(window.mark)`); mark != "of the first load" {
		t.Errorf("the page was loaded again: %s", mark)
	}
	p.shot("vite")
}

func TestJupyterLabInASandbox(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	box := f.prepared(map[string]any{"packages": []string{"jupyterlab==4.4.9"}})
	p := f.served(t, box, "exec python3 -m jupyterlab --no-browser --ServerApp.port=8888 --IdentityProvider.token= --LabApp.news_url= --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", 8888)
	p.until(`Boolean(document.querySelector('.jp-LauncherCard[data-category="Notebook"]'))`)
	p.click(`.jp-LauncherCard[data-category="Notebook"]`)
	p.until(`document.querySelector(".jp-Notebook-ExecutionIndicator")?.dataset.status === "idle"`)
	p.do(chromedp.Click(".jp-Notebook .cm-content", chromedp.ByQuery), chromedp.KeyEvent("6 * 7"), chromedp.Click(`jp-button[data-command="notebook:run-cell-and-select-next"], [data-command="notebook:run-cell-and-select-next"]`, chromedp.ByQuery))
	p.until(`document.querySelector(".jp-OutputArea-output pre")?.innerText.trim() === "42"`)
	p.shot("jupyterlab")
}
