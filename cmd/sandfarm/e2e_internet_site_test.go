//go:build integration

package main_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The headers in which the site takes secrets.
const (
	tokenHeader = "Authorization"
	keyHeader   = "X-Api-Key"
)

// visit is a request that the site got.
type visit struct {
	host, method, path string
	tls                bool
	header             http.Header
	body               string
}

// ServeHTTP is the site.
func (n *internet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	n.mu.Lock()
	n.seen = append(n.seen, visit{host: r.Host, method: r.Method, path: r.URL.RequestURI(), tls: r.TLS != nil, header: r.Header.Clone(), body: string(body)})
	n.mu.Unlock()
	if strings.HasPrefix(r.Host, "index.") {
		n.pypi.serve(w, r)
		return
	}
	switch r.URL.Path {
	case "/digest": // shows code that the headers were there, and not what they are
		for _, name := range []string{tokenHeader, keyHeader} {
			sum := sha256.Sum256([]byte(strings.Join(r.Header.Values(name), "\n")))
			_, _ = fmt.Fprintf(w, "%s %d %s\n", name, len(r.Header.Values(name)), hex.EncodeToString(sum[:]))
		}
	case "/redirect":
		w.Header().Set("Location", r.FormValue("to"))
		w.WriteHeader(http.StatusTemporaryRedirect)
	case "/hold":
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case "/echo":
		repeat(w, r, r.Header.Get(tokenHeader)+"\n"+r.Header.Get(keyHeader)+"\n")
	default:
		_, _ = fmt.Fprintf(w, "%s %s\n", r.Method, r.Host)
	}
}

// repeat gives back what a host should keep to itself, in the form that the query names.
func repeat(w http.ResponseWriter, r *http.Request, text string) {
	line := strings.ReplaceAll(strings.TrimSpace(text), "\n", " ")
	switch r.FormValue("how") {
	case "header":
		w.Header().Set("X-Got", line)
	case "name":
		w.Header()[strings.NewReplacer(" ", "-", "\n", "").Replace("X-"+line)] = []string{"x"}
	case "cookie":
		http.SetCookie(w, &http.Cookie{Name: "got", Value: r.Header.Get(keyHeader)})
	case "location":
		w.Header().Set("Location", "https://other.good.test/?got="+url.QueryEscape(line))
		w.WriteHeader(http.StatusFound)
	case "hints":
		w.Header().Set("Link", "<https://other.good.test/"+url.PathEscape(line)+">; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
	case "trailer":
		w.Header().Set("Trailer", "X-Got")
		_, _ = io.WriteString(w, "the trailer has it\n")
		w.Header().Set("X-Got", line)
	case "gzip":
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		_, _ = io.WriteString(packed, text)
		_ = packed.Close()
	case "json":
		_ = json.NewEncoder(w).Encode(map[string]string{"got": line})
	case "url":
		_, _ = io.WriteString(w, url.QueryEscape(line))
	case "drip": // each byte alone
		for _, c := range []byte(text) {
			_, _ = w.Write([]byte{c})
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	case "late":
		_, _ = w.Write(bytes.Repeat([]byte("x"), 300<<10))
		_, _ = io.WriteString(w, text)
	case "error":
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "no such key: "+text)
	case "range":
		http.ServeContent(w, r, "got.txt", time.Time{}, strings.NewReader(text))
	default:
		_, _ = io.WriteString(w, text)
	}
}

// visited are the requests that the site got since the last call.
func (n *internet) visited() []visit {
	n.mu.Lock()
	defer n.mu.Unlock()
	got := n.seen
	n.seen = nil
	return got
}
