//go:build browser

package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// foreignPage is a page of another port of the same machine, which browsers take for the same site. It tries to use the session.
const foreignPage = `<!doctype html><title>foreign</title><p id="done"></p><iframe name="sink" title="sink"></iframe>
<iframe id="frame" src="%[1]s/" title="framed"></iframe><iframe id="terminal" src="%[1]s/ui/terminal.html" title="framed"></iframe>
<form id="form" method="post" action="%[1]s/v1/sandboxes" enctype="text/plain" target="sink"><input name='{"name":"forged","x":"' value='"}'></form>
<script>
(async () => {
  const said = [];
  for (const [path, options] of [["/v1/sandboxes", { method: "POST", body: '{"name":"forged"}' }], ["/v1/sandboxes", { method: "POST", mode: "no-cors", body: '{"name":"forged"}' }], ["/v1/jobs", {}], ["/session", { method: "DELETE" }], ["/session", {}]]) {
    said.push(await fetch("%[1]s" + path, { credentials: "include", ...options }).then((answer) => answer.type + " " + answer.status, () => "refused"));
  }
  document.getElementById("form").submit();
  said.push(await new Promise((done) => { const s = new WebSocket("%[2]s"); s.onopen = () => done("open"); s.onerror = () => done("refused"); }));
  document.getElementById("done").textContent = "done: " + said.join(", ");
})();
</script>`

func TestAPageOfAnotherOriginUsesNothing(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	box := f.sandbox(acme, map[string]any{"name": "mine"})
	process := call[record](f, acme, "POST", "/v1/sandboxes/"+box+"/processes", map[string]any{"command": "sleep 600", "pty": map[string]int{"cols": 80, "rows": 24}})
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, foreignPage, f.url, strings.Replace(f.url, "http", "ws", 1)+"/v1/sandboxes/"+box+"/processes/"+process.ID+"/attach")
	}))
	t.Cleanup(foreign.Close)
	p := openPage(t, f, "#/sandboxes")
	p.logIn(acme)
	p.sees("mine")
	for _, part := range []string{"CORS policy", "frame-ancestors", "WebSocket connection", "X-Frame-Options", "in a frame because", "Framing"} {
		p.expect(part)
	}
	p.do(chromedp.Navigate(foreign.URL))
	p.until(`document.getElementById("done").textContent.startsWith("done")`)
	if answers := value[string](p, `document.getElementById("done").textContent`); answers != "done: refused, opaque 0, refused, refused, refused, refused" {
		t.Errorf("the page was answered: %s", answers)
	}
	if framed := value[bool](p, `["frame", "terminal"].some((id) => { try { return document.getElementById(id).contentDocument !== null } catch { return false } })`); framed {
		t.Error("the dashboard can be framed")
	}
	p.do(chromedp.Navigate(f.url + "/#/sandboxes"))
	p.sees("mine") // still logged in
	if page := call[struct{ Items []record }](f, acme, "GET", "/v1/sandboxes", nil); len(page.Items) != 1 {
		t.Errorf("there are %d sandboxes", len(page.Items))
	}
}

// echo is a server in a sandbox that answers with the header that it got, and asks for the session from its page.
const echo = `
import http.server, threading
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Set-Cookie", "sandfarm_session=forged; Path=/")
        self.end_headers()
        self.wfile.write(("<pre id=got>" + str(self.headers) + "</pre><p id=said></p><script>fetch('/session', {credentials: 'include'}).then((a) => a.text()).then((t) => t, (e) => 'refused').then((t) => { document.getElementById('said').textContent = 'said: ' + t })</script>").encode())
    def log_message(self, *a): pass
threading.Thread(target=http.server.HTTPServer(("127.0.0.1", 8000), Echo).serve_forever, daemon=True).start()
`

func TestTheSessionNeverReachesAPort(t *testing.T) {
	t.Parallel()
	f := startFarm(t, append(withKeys(), "SANDFARM_API_PREVIEW_DOMAIN=none")...)
	box := f.sandbox(acme, map[string]any{"name": "server"})
	f.execute(acme, box, echo)
	link := call[struct{ URL string }](f, acme, "POST", "/v1/sandboxes/"+box+"/port-links", map[string]any{"port": 8000})
	if !strings.HasPrefix(link.URL, f.url) {
		t.Fatalf("the link is not on the farm's origin: %s", link.URL)
	}
	p := openPage(t, f, "#/sandboxes/"+box+"/ports")
	p.logIn(acme)
	p.sees("8000")
	for _, part := range []string{"CORS policy", "Content Security Policy"} {
		p.expect(part)
	}
	p.do(chromedp.Navigate(link.URL))
	p.until(`document.getElementById("said")?.textContent.startsWith("said")`)
	got, answers := value[string](p, `document.getElementById("got").textContent`), value[string](p, `document.getElementById("said").textContent`)
	if !strings.Contains(got, "Host: localhost:8000") || strings.Contains(strings.ToLower(got), "sandfarm_session") {
		t.Errorf("the sandbox got %s", got)
	}
	if answers != "said: refused" {
		t.Errorf("a page of the sandbox asked for the session: %s", answers)
	}
	p.do(chromedp.Navigate(f.url + "/v1/sandboxes/" + box + "/ports/8000/"))
	p.until(`document.body.innerText.includes("key")`)
	if text := value[string](p, `document.body.innerText`); strings.Contains(text, "Host: localhost") {
		t.Errorf("the session opens the port: %s", text)
	}
	p.do(chromedp.Navigate(f.url + "/#/sandboxes/" + box + "/ports"))
	p.sees("8000") // still logged in: the sandbox did not replace the cookie
}

// TestBehindAPrefix serves the farm below a path, as a proxy for several programs does.
func TestBehindAPrefix(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	to, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	passOn := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}}
	proxy := httptest.NewServer(http.StripPrefix("/my/farm", passOn))
	t.Cleanup(proxy.Close)
	box := f.sandbox(acme, map[string]any{"name": "behind"})

	outside := *f
	outside.url = proxy.URL + "/my/farm"
	p := openPage(t, &outside, "")
	p.size(1360, 900, "light")
	p.logIn(acme)
	var cookies []*network.Cookie
	p.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		cookies, err = network.GetCookies().WithURLs([]string{outside.url + "/"}).Do(ctx)
		return err
	}))
	if len(cookies) != 1 || cookies[0].Path != "/my/farm/" || !cookies[0].HTTPOnly || cookies[0].SameSite != network.CookieSameSiteStrict {
		t.Errorf("the cookies are %+v", cookies)
	}
	p.fill("textarea", "print('through', 'the proxy')")
	p.click("#run")
	p.sees("through the proxy")
	p.goTo("#/sandboxes/" + box + "/terminal")
	p.terminalSees("$")
	p.typeInTerminal("echo proxied | tr a-z A-Z\r")
	p.terminalSees("PROXIED")
	p.click("#logout")
	p.until(`Boolean(document.querySelector("input[name=key]"))`)
	if left := value[string](p, `performance.getEntriesByType("resource").map((one) => one.name).filter((one) => !new URL(one).pathname.startsWith("/my/farm/")).join(" ")`); left != "" {
		t.Errorf("the page asked beside the prefix: %s", left)
	}
	if !strings.HasPrefix(value[string](p, `location.href`), outside.url) {
		t.Error("the page left the prefix")
	}
	p.do(chromedp.Navigate(outside.url + "/docs"))
	p.sees("Show the farm's limits")
	p.fill("#key", acme)
	p.do(chromedp.Evaluate(`(() => { const one = [...document.querySelectorAll("details")].find((d) => d.innerText.includes("Show the farm's limits")); one.open = true; setTimeout(() => one.querySelector("button[type=submit]").click()) })()`, nil))
	p.sees(`"memory_mb"`)
}
