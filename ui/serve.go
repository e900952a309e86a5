package ui

import (
	"net/http"
	"strings"
)

// Pages that have another policy than policy.
const (
	// framePage shows results that are HTML. It has an origin of its own, reaches nothing, and runs what it is given.
	framePage   = "frame.html"
	framePolicy = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
	// frameReaches is its Connection-Allowlist, with no address: a policy of content does not cover WebRTC and the connections that browsers open ahead.
	frameReaches = "()"
	// terminalPage has the terminal, which writes style elements of its own.
	terminalPage   = "terminal.html"
	terminalPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)

// policy lets the dashboard's pages run their own scripts and show pictures of the farm and of its store, and nothing else. A blob is a file
// that the dashboard shows in the browser's viewer of PDF, under a type that the dashboard gives it.
func policy(store string) string {
	return "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:" + store + "; frame-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// Serve answers with a file by its path in this folder, see Find. It reports false, and has not answered, if there is none. store is the origin that
// presigned links lead to, with a space before it; "" if there is none.
func (f *Files) Serve(w http.ResponseWriter, r *http.Request, name, store string) bool {
	file, lasting, ok := f.Find(name)
	if !ok {
		return false
	}
	h := w.Header()
	switch file.Name {
	case framePage:
		h.Set("Content-Security-Policy", framePolicy)
		h.Set("Connection-Allowlist", frameReaches)
	case terminalPage:
		h.Set("Content-Security-Policy", terminalPolicy)
	default:
		h.Set("Content-Security-Policy", policy(store))
	}
	if file.Name != framePage && file.Name != terminalPage {
		h.Set("X-Frame-Options", "DENY")
	}
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	if lasting {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	h.Set("ETag", file.ETag)
	h.Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("If-None-Match"), file.ETag) {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	content := file.Content
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		content = file.Gzip()
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", file.Type)
	_, _ = w.Write(content) // the browser has left
	return true
}
