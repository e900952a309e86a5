package ports

import (
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"
)

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
