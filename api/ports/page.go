package ports

import (
	"bytes"
	"html/template"
	"net/http"
	"strconv"
	"strings"
)

// retrySeconds is how often a page tries again a server that does not answer.
const retrySeconds = 3

var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Title}}</title><meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:15vh auto;padding:0 1rem;color:#222;background:#fff}h1{font-size:1.4rem}small{color:#666}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}small{color:#999}}</style></head>
<body><h1>{{.Title}}</h1><p>{{.Detail}}</p>{{if .Retry}}<p>This page tries again every {{.Retry}} seconds.</p>{{end}}<p><small>Sandfarm · {{.Status}} · {{.RequestID}}</small></p></body></html>
`))

// WantsPage reports whether a request is a browser's for a page.
func WantsPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// WritePage answers with a page for people. One for a status of 502 or 503 loads itself again.
func WritePage(w http.ResponseWriter, status int, detail, requestID string) error {
	title := http.StatusText(status)
	retry := 0
	if status == http.StatusBadGateway || status == http.StatusServiceUnavailable {
		title, retry = "No answer from the sandbox", retrySeconds
	}
	var text bytes.Buffer
	if err := page.Execute(&text, map[string]any{"Title": title, "Detail": detail, "Status": status, "RequestID": requestID, "Retry": retry}); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox allow-scripts") // allow-scripts is what loading again needs
	if retry > 0 {
		h.Set("Refresh", strconv.Itoa(retry))
	}
	w.WriteHeader(status)
	_, err := w.Write(text.Bytes())
	return err
}
