//go:build browser

package browsertest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

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
