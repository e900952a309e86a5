//go:build integration && browser

package main_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// labTimeout is how long what a user waits for may take: two cores run JupyterLab, Chromium, the farm and other tests.
const labTimeout = 4 * time.Minute

// lab is a JupyterLab on the farm in a browser.
type lab struct {
	t    *testing.T
	url  string
	dir  string
	ctx  context.Context // of the browser
	logs *testbed.Log
}

// startLab starts the JupyterLab of the test's environment by `sandfarm jupyter`, and a Chromium.
func (f *farmProcess) startLab(t *testing.T) *lab {
	t.Helper()
	dir := os.Getenv("SANDFARM_TEST_JUPYTER")
	if dir == "" {
		t.Fatal("SANDFARM_TEST_JUPYTER does not name the clients of Jupyter: run the tests with make test-jupyter")
	}
	at := testbed.Address(t)
	l := &lab{t: t, url: "http://" + at, dir: t.TempDir(), logs: &testbed.Log{}}
	host, port, _ := strings.Cut(at, ":")
	run := exec.Command(program, "jupyter", "--network", "packages", "--packages", "ipywidgets", "--", "--no-browser", "--allow-root", "--ServerApp.ip="+host, "--port="+port,
		"--IdentityProvider.token=", "--ServerApp.root_dir="+l.dir, "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate")
	home := t.TempDir()
	run.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "SANDFARM_URL="+f.url, "HOME="+home, "JUPYTER_PLATFORM_DIRS=1", "KERNEL_LAUNCH_TIMEOUT=230")
	run.Stdout, run.Stderr = l.logs, l.logs
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testbed.Must(t, run.Start())
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(1280, 900), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(labTimeout))
	if path := os.Getenv("SANDFARM_TEST_CHROMIUM"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...) // it outlives the test's own context: the cleanup looks at the page
	ctx, cancel := chromedp.NewContext(allocator)
	l.ctx = ctx
	if err := chromedp.Run(ctx); err != nil { // the browser lives as long as the context of the first run
		t.Fatalf("start Chromium (deploy/setup.sh ui installs it): %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			l.picture("failed")
			t.Logf("output of JupyterLab:\n%s", l.logs.Tail())
		}
		cancel()
		end()
		_ = run.Process.Signal(syscall.SIGTERM)
		_ = run.Wait()
	})
	l.until("JupyterLab answers", func() bool {
		answer, err := http.Get(l.url + "/api") //nolint:noctx // it is on this machine, and until ends
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return l
}

// until polls a condition.
func (l *lab) until(what string, condition func() bool) {
	l.t.Helper()
	for end := time.Now().Add(labTimeout); !condition(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("waited %v until %s", labTimeout, what)
		}
	}
}

// do does something in the browser.
func (l *lab) do(actions ...chromedp.Action) {
	l.t.Helper()
	ctx, done := context.WithTimeout(l.ctx, labTimeout)
	defer done()
	testbed.Must(l.t, chromedp.Run(ctx, actions...))
}

// holds waits until an expression of JavaScript is true.
func (l *lab) holds(expression string) {
	l.t.Helper()
	l.until(expression, func() bool {
		ctx, done := context.WithTimeout(l.ctx, labTimeout)
		defer done()
		var ok bool
		err := chromedp.Run(ctx, chromedp.Evaluate("Boolean("+expression+")", &ok))
		return err == nil && ok
	})
}

// open opens a new notebook with cells, and runs them as soon as their kernel is there.
func (l *lab) open(name string, cells ...string) {
	l.t.Helper()
	type cell = map[string]any
	book := map[string]any{"nbformat": 4, "nbformat_minor": 5, "metadata": map[string]any{"kernelspec": map[string]string{"name": "python3", "display_name": "Python 3", "language": "python"}}}
	list := []cell{}
	for i, code := range cells {
		list = append(list, cell{"id": name + string(rune('a'+i)), "cell_type": "code", "metadata": cell{}, "outputs": []any{}, "execution_count": nil, "source": code})
	}
	book["cells"] = list
	text, err := json.Marshal(book)
	testbed.Must(l.t, err)
	testbed.Must(l.t, os.WriteFile(filepath.Join(l.dir, name+".ipynb"), text, 0o600))
	l.do(chromedp.Navigate(l.url + "/lab/workspaces/" + name + "/tree/" + name + ".ipynb"))
	l.holds(`window.jupyterapp && document.querySelectorAll(".jp-Notebook .jp-CodeCell").length === ` + string(rune('0'+len(cells))))
	// Without a kernel JupyterLab runs nothing. Its indicator shows idle before there is one.
	l.holds(`[...jupyterapp.shell.widgets("main")].some(w => w.sessionContext?.session?.kernel?.status === "idle")`)
	l.do(chromedp.Evaluate(`void jupyterapp.commands.execute("notebook:run-all-cells")`, nil))
}

// picture takes a picture of the page, in the folder SANDFARM_TEST_PICTURES, if it is set.
func (l *lab) picture(name string) {
	l.t.Helper()
	dir := os.Getenv("SANDFARM_TEST_PICTURES")
	if dir == "" {
		return
	}
	var png []byte
	ctx, done := context.WithTimeout(l.ctx, time.Minute)
	defer done()
	if err := chromedp.Run(ctx, chromedp.CaptureScreenshot(&png)); err != nil {
		l.t.Logf("take a picture: %v", err)
		return
	}
	testbed.Must(l.t, os.WriteFile(filepath.Join(dir, "jupyterlab-"+name+".png"), png, 0o600))
}

// TestJupyterLab uses a JupyterLab on the farm as its users do.
func TestJupyterLab(t *testing.T) {
	t.Parallel()
	widget, err := os.ReadFile("testdata/jupyterlab/widget.py")
	testbed.Must(t, err)
	l := newFarm(t).startLab(t)

	// A cell that is run as soon as JupyterLab has its kernel shows its output.
	l.open("early", "print('first', 6 * 7)", "print('second')")
	l.holds(`document.querySelector(".jp-Notebook").innerText.includes("first 42")`)
	l.holds(`document.querySelector(".jp-Notebook").innerText.includes("second\n")`)

	l.open("plot", "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()", string(widget))
	l.holds(`document.querySelector(".jp-RenderedImage img")?.naturalWidth > 100`)
	l.holds(`document.querySelector(".jupyter-widgets .noUi-handle")`)
	l.do(chromedp.Focus(".jupyter-widgets .noUi-handle", chromedp.ByQuery), chromedp.KeyEvent(kb.ArrowRight))
	l.holds(`document.querySelector(".jupyter-widgets.widget-output")?.innerText.includes("moved to 4")`)
	l.holds(`document.querySelector(".jupyter-widgets.widget-output img")?.naturalWidth > 100`)
	l.picture("plot")
}

// TestJupyterVSCode makes the calls that VS Code's Jupyter extension makes of a server, with the library that it is built on. The extension
// itself needs VS Code.
func TestJupyterVSCode(t *testing.T) {
	t.Parallel()
	dir, node := os.Getenv("SANDFARM_TEST_JUPYTER_NODE"), os.Getenv("SANDFARM_TEST_MCP")
	if dir == "" || node == "" {
		t.Fatal("SANDFARM_TEST_JUPYTER_NODE does not name the folder of deploy/jupyter/package.json, or SANDFARM_TEST_MCP not the folder with Node: run the tests with make test-jupyter")
	}
	f, key := newFarmWithKey(t)
	// The test lies beside the packages that it imports.
	copied := filepath.Join(t.TempDir(), "jupyter")
	testbed.Must(t, os.CopyFS(copied, os.DirFS("testdata/jupyter-node")))
	testbed.Must(t, os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(copied, "node_modules")))
	ctx, cancel := context.WithTimeout(t.Context(), jupyterTimeout)
	defer cancel()
	run := exec.CommandContext(ctx, filepath.Join(node, "node", "bin", "node"), "--test", "--test-force-exit", filepath.Join(copied, "vscode.test.mjs"))
	run.Env, run.WaitDelay = append(os.Environ(), "JUPYTER_URL="+f.url+"/jupyter/", "JUPYTER_TOKEN="+key), 5*time.Second
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
