//go:build browser

package ui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// browser is one Chromium for all tests of the process.
var browser = sync.OnceValue(func() context.Context {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(1360, 900), chromedp.Flag("lang", "en-US"),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("force-color-profile", "srgb"))
	if path := os.Getenv("SANDFARM_TEST_CHROMIUM"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	allocator, _ := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	if err := chromedp.Run(ctx); err != nil {
		panic("start Chromium (Debian: apt-get install chromium): " + err.Error())
	}
	return ctx
})

// newWindow opens an empty window that shares nothing with others. Chromium opens no tab in a new context, only a window.
func newWindow(t *testing.T) (target.ID, cdp.BrowserContextID) {
	t.Helper()
	main := chromedp.FromContext(browser())
	ctx := cdp.WithExecutor(browser(), main.Browser)
	apart, err := target.CreateBrowserContext().WithDisposeOnDetach(true).Do(ctx)
	if err != nil {
		t.Fatal(err)
	}
	id, err := target.CreateTarget("about:blank").WithBrowserContextID(apart).WithNewWindow(true).Do(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return id, apart
}

func TestMain(m *testing.M) {
	code := m.Run()
	if ctx := browser(); ctx != nil {
		_ = chromedp.Cancel(ctx)
	}
	os.Exit(code)
}

// page is a tab with cookies and storage of its own.
type page struct {
	t     *testing.T
	ctx   context.Context
	farm  *testFarm
	apart cdp.BrowserContextID

	mu       sync.Mutex
	problems []string // errors of scripts, and what the policy refused
	expected []string // parts of problems that a test provokes
}

// openPage opens the dashboard in a new tab. At the end of the test the page must have had no errors.
func openPage(t *testing.T, farm *testFarm, hash string) *page {
	t.Helper()
	window, apart := newWindow(t)
	ctx, cancel := chromedp.NewContext(browser(), chromedp.WithTargetID(window))
	ctx, stop := context.WithTimeout(ctx, 2*timeout)
	p := &page{t: t, ctx: ctx, farm: farm, apart: apart}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			p.problem(e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError {
				text, _ := json.Marshal(e.Args)
				p.problem(string(text))
			}
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError && e.Entry.Source != log.SourceNetwork { // an answer that is an error is no error of the page
				p.problem(e.Entry.Text + " " + e.Entry.URL)
			}
		}
	})
	t.Cleanup(func() {
		stop()
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Errorf("the page had an error: %s", problem)
		}
	})
	p.do(log.Enable(), runtime.Enable(), chromedp.Navigate(farm.url+"/"+hash))
	return p
}

func (p *page) problem(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, part := range p.expected {
		if strings.Contains(text, part) {
			return
		}
	}
	p.problems = append(p.problems, text)
}

// expect names a part of an error that the test provokes.
func (p *page) expect(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, part)
}

func (p *page) do(actions ...chromedp.Action) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		p.shot("failed-" + strings.ReplaceAll(p.t.Name(), "/", "-"))
		p.t.Fatal(err)
	}
}

// until waits until an expression is true.
func (p *page) until(expression string) {
	p.t.Helper()
	ctx, done := context.WithTimeout(p.ctx, timeout)
	defer done()
	if err := chromedp.Run(ctx, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(0))); err != nil {
		var text string
		_ = chromedp.Run(p.ctx, chromedp.Evaluate(`document.body.innerText`, &text))
		p.shot("failed-" + strings.ReplaceAll(p.t.Name(), "/", "-"))
		p.t.Fatalf("%s does not become true: %v\nthe page says:\n%s", expression, err, text)
	}
}

// sees waits until the page shows a text.
func (p *page) sees(text string) {
	p.t.Helper()
	quoted, _ := json.Marshal(text)
	p.until(`document.body.innerText.includes(` + string(quoted) + `)`)
}

func (p *page) click(selector string) {
	p.t.Helper()
	p.do(chromedp.WaitEnabled(selector, chromedp.ByQuery), chromedp.Click(selector, chromedp.ByQuery, chromedp.NodeVisible)) // a button takes no click before its page is drawn
}

// clickText clicks the first button or link whose text or label contains a text.
func (p *page) clickText(text string) {
	p.t.Helper()
	quoted, _ := json.Marshal(text)
	find := `[...document.querySelectorAll("button, a, summary")].find((one) => one.offsetParent && !one.disabled && (one.innerText + " " + (one.getAttribute("aria-label") || "")).includes(` + string(quoted) + `))`
	p.until(`Boolean(` + find + `)`)
	p.do(chromedp.Evaluate(find+`.click()`, nil))
}

// fill replaces the text of a field.
func (p *page) fill(selector, text string) {
	p.t.Helper()
	quoted, _ := json.Marshal(text)
	p.do(chromedp.WaitVisible(selector, chromedp.ByQuery), chromedp.Focus(selector, chromedp.ByQuery), chromedp.Evaluate(`(() => { const node = document.querySelector(`+"`"+selector+"`"+`); Object.getOwnPropertyDescriptor(Object.getPrototypeOf(node), "value").set.call(node, `+string(quoted)+`); node.dispatchEvent(new Event("input", { bubbles: true })); })()`, nil))
}

func value[T any](p *page, expression string) T {
	p.t.Helper()
	var out T
	p.do(chromedp.Evaluate(expression, &out, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	return out
}

// choose chooses an option of the nth select that fits, from 0.
func (p *page) choose(selector, option string, n int) {
	p.t.Helper()
	p.until(fmt.Sprintf(`Boolean(document.querySelectorAll(%q)[%d]?.querySelector("option[value='%s']"))`, selector, n, option))
	p.do(chromedp.Evaluate(fmt.Sprintf(`{ const it = document.querySelectorAll(%q)[%d]; it.value = %q; it.dispatchEvent(new Event("change", { bubbles: true })); }`, selector, n, option), nil))
}

func (p *page) goTo(hash string) {
	p.t.Helper()
	quoted, _ := json.Marshal(hash)
	p.do(chromedp.Evaluate(`location.hash = `+string(quoted), nil))
}

// logIn enters a key.
func (p *page) logIn(key string) {
	p.t.Helper()
	p.fill("input[name=key]", key)
	p.click("button[type=submit]")
	p.until(`Boolean(document.querySelector(".main-nav"))`)
}

// size sets the size of the window, as on a desk or on a phone, and the colours that the system prefers.
func (p *page) size(width, height int64, scheme string) {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(width, height, chromedp.EmulateScale(1)),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
}

// download clicks a link, and returns the file that the browser has saved.
func (p *page) download(selector string) []byte {
	p.t.Helper()
	folder := p.t.TempDir()
	saved := make(chan string, 1)
	chromedp.ListenTarget(p.ctx, func(event any) {
		if e, ok := event.(*cdpbrowser.EventDownloadProgress); ok && e.State == cdpbrowser.DownloadProgressStateCompleted {
			select {
			case saved <- e.GUID:
			default:
			}
		}
	})
	p.do(cdpbrowser.SetDownloadBehavior(cdpbrowser.SetDownloadBehaviorBehaviorAllowAndName).WithBrowserContextID(p.apart).WithDownloadPath(folder).WithEventsEnabled(true))
	p.click(selector)
	select {
	case name := <-saved:
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			p.t.Fatal(err)
		}
		return content
	case <-time.After(timeout):
		p.t.Fatalf("%s downloads nothing", selector)
		return nil
	}
}

// shot keeps a picture of the page, where pictures are wanted.
func (p *page) shot(name string) {
	p.t.Helper()
	folder := os.Getenv("SANDFARM_TEST_PICTURES")
	if folder == "" {
		return
	}
	var picture []byte
	err := chromedp.Run(p.ctx, chromedp.ActionFunc(func(ctx context.Context) (err error) {
		picture, err = cdppage.CaptureScreenshot().WithFormat(cdppage.CaptureScreenshotFormatPng).Do(ctx)
		return err
	}))
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o600)
	}
	if err != nil {
		p.t.Logf("keep a picture: %v", err)
	}
}
