package ports

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/api/access"
)

// Isolated is the Content-Security-Policy of answers on the farm's own origin: a page runs, but with an origin of its own that nobody trusts,
// so it has no cookie and no storage of the farm, and browsers keep the farm's answers from it.
const Isolated = "sandbox allow-downloads allow-forms allow-modals allow-pointer-lock allow-popups allow-presentation allow-scripts"

// originWide are headers that act on more than the answer: on all of its origin. A sandbox must not send them on the farm's.
var originWide = []string{
	"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins", "Expect-Ct", "Nel", "Report-To", "Reporting-Endpoints",
	"Secure-Session-Registration", "Sec-Session-Registration", "Secure-Session-Challenge", "Sec-Session-Challenge", "Service-Worker-Allowed", "Speculation-Rules", "Use-As-Dictionary", "Accept-Ch", "Critical-Ch", "Set-Login", "Origin-Agent-Cluster", "Observe-Browsing-Topics", "Supports-Loading-Mode",
	"Www-Authenticate", "Proxy-Authenticate", // a browser would ask for a password of the farm, and send it to all of its origin
}

// forProxies are headers by which a proxy in front of the farm sends a file of its own host in place of the answer.
var forProxies = []string{"X-Accel-Redirect", "X-Sendfile", "X-Sendfile2", "X-Lighttpd-Send-File", "X-LiteSpeed-Location", "X-Reproxy-Url", "X-Reproxy-File"}

// rewriteAnswer makes the answer of a server harmless on the origin where it is shown, and leads its redirects and cookies back to the port.
func (p *passing) rewriteAnswer(res *http.Response) {
	h := res.Header
	p.rewriteCookies(h)
	if !p.AsIs {
		for _, name := range []string{"Location", "Content-Location"} {
			if value := h.Get(name); value != "" {
				h.Set(name, p.outside(value))
			}
		}
	}
	h.Del("X-Request-Id") // the farm's own says more
	for _, name := range forProxies {
		h.Del(name)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		h.Del("Trailer")
		res.Trailer, res.Body = nil, withoutTrailer{res.Body, res}
	}
	if p.Prefix == "" {
		h.Del("Clear-Site-Data") // cookies of other ports and of the farm's domain would go, too
		h.Add("Content-Security-Policy", "frame-ancestors 'self'")
		return
	}
	if p.Public && p.in.Header.Get("Origin") == "null" {
		h.Set("Access-Control-Allow-Origin", "null")
	}
	for _, name := range originWide {
		h.Del(name)
	}
	h.Add("Content-Security-Policy", Isolated)
	h.Set("Referrer-Policy", "no-referrer") // the address may be a link that needs no key
	h.Set("X-Content-Type-Options", "nosniff")
}

// withoutTrailer is the body of an answer whose trailer is dropped: a proxy in front of the farm may take it for headers.
type withoutTrailer struct {
	io.ReadCloser
	answer *http.Response
}

// Close drops what was read of the trailer.
func (b withoutTrailer) Close() error {
	err := b.ReadCloser.Close()
	b.answer.Trailer = nil
	return err
}

// outside is the address by which the caller reaches what the server calls target.
func (p *passing) outside(target string) string {
	u, err := url.Parse(target)
	if err != nil || u.Opaque != "" {
		return target
	}
	if u.Host != "" {
		if u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" || !p.own(u.Host) {
			return target
		}
		u.Scheme, u.Host, u.User = "", "", nil
		if u.Path == "" {
			u.Path = "/"
		}
	}
	if !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") {
		return target
	}
	path := u.EscapedPath()
	if p.Prefix != "" && path != p.Prefix && !strings.HasPrefix(path, p.Prefix+"/") { // a server that knows its prefix has added it
		path = p.Prefix + path
	}
	out := path
	if u.RawQuery != "" || u.ForceQuery {
		out += "?" + u.RawQuery
	}
	if fragment := u.EscapedFragment(); fragment != "" {
		out += "#" + fragment
	}
	return out
}

// own reports whether a host is one by which the server may know itself.
func (p *passing) own(host string) bool {
	_, port, _ := strings.Cut(p.local(), ":")
	for _, name := range []string{p.local(), "127.0.0.1:" + port, "[::1]:" + port, "0.0.0.0:" + port, p.in.Host} {
		if strings.EqualFold(host, name) {
			return true
		}
	}
	return false
}

// rewriteCookies keeps cookies of the server on the port's host and, on the farm's own origin, below the port's path. What cannot be read is
// dropped: a browser might read it differently. So are, on the farm's own origin, cookies with the prefix __Host-, which are for all of it.
func (p *passing) rewriteCookies(h http.Header) {
	lines := h["Set-Cookie"]
	h.Del("Set-Cookie")
	for _, line := range lines {
		c, err := http.ParseSetCookie(line)
		if err != nil || isFarms(c.Name) {
			continue
		}
		c.Domain = ""
		if p.Prefix != "" && !p.AsIs {
			if strings.HasPrefix(strings.ToLower(c.Name), "__host-") {
				continue
			}
			path := c.Path
			if !strings.HasPrefix(path, "/") {
				path = "/"
			}
			c.Path = p.Prefix + path
		}
		if text := c.String(); text != "" {
			h.Add("Set-Cookie", text)
		}
	}
}

// hideCookies removes the farm's cookies from a request.
func hideCookies(h http.Header) {
	lines := h["Cookie"]
	if len(lines) == 0 {
		return
	}
	h.Del("Cookie")
	var kept []string
	for _, line := range lines {
		for pair := range strings.SplitSeq(line, ";") {
			name, _, _ := strings.Cut(pair, "=")
			if pair = strings.TrimSpace(pair); pair != "" && !isFarms(strings.TrimSpace(name)) {
				kept = append(kept, pair)
			}
		}
	}
	if len(kept) > 0 {
		h.Set("Cookie", strings.Join(kept, "; "))
	}
}

// isFarms reports whether a cookie is the farm's own.
func isFarms(name string) bool {
	name = strings.ToLower(name)
	for _, prefix := range []string{"__host-", "__secure-"} {
		name = strings.TrimPrefix(name, prefix)
	}
	return strings.HasPrefix(name, access.CookiePrefix)
}

// retrySeconds is how often a page tries again a server that does not answer.
const retrySeconds = 3

// page is filled by hand: with package html/template, the linker keeps every exported method of every type: 14 MB.
const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>%[1]s</title><meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:15vh auto;padding:0 1rem;color:#222;background:#fff}h1{font-size:1.4rem}small{color:#666}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}small{color:#999}}</style></head>
<body><h1>%[1]s</h1><p>%[2]s</p>%[3]s<p><small>Sandfarm · %[4]d · %[5]s</small></p></body></html>
`

// WantsPage reports whether a request is a browser's for a page.
func WantsPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// WritePage answers with a page for people. One for a status of 502 or 503 loads itself again.
func WritePage(w http.ResponseWriter, status int, detail, requestID string) error {
	title := http.StatusText(status)
	h := w.Header()
	again := ""
	if status == http.StatusBadGateway || status == http.StatusServiceUnavailable {
		title, again = "No answer from the sandbox", fmt.Sprintf("<p>This page tries again every %d seconds.</p>", retrySeconds)
		h.Set("Refresh", strconv.Itoa(retrySeconds))
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox allow-scripts") // allow-scripts is what loading again needs
	w.WriteHeader(status)
	_, err := fmt.Fprintf(w, page, html.EscapeString(title), html.EscapeString(detail), again, status, html.EscapeString(requestID))
	return err
}
