// Package pyindex re-serves a Python package index over plain HTTP on this host. Image builds use it: a container does
// not trust the host's certificate authorities, and the host often sits behind one of its own. It reads through, keeps
// nothing, serves GET and HEAD only, and fetches from the index and its file store alone, whatever the links in a page
// say.
package pyindex

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Where packages come from when nothing is set.
const (
	DefaultIndexURL = "https://pypi.org/simple/"
	DefaultFilesURL = "https://files.pythonhosted.org/"
)

const (
	pageTimeout = 60 * time.Second // a page of a popular package has some MiB
	fileTimeout = 30 * time.Minute // a wheel of a GiB over a slow line
	pageMax     = 64 << 20         // the largest page of the index has under 20 MiB
)

// Config says where packages come from. The zero value is PyPI.
type Config struct {
	IndexURL string       // simple index, one page for each project; empty: DefaultIndexURL
	FilesURL string       // where the pages' links to files lead; empty: DefaultFilesURL. Links into IndexURL's host work too
	Client   *http.Client // nil: one with the host's trust store and proxy settings
	Logger   *slog.Logger // nil: nothing is logged
}

// Handler serves /simple/<project>/ and the files that its pages link to.
type Handler struct {
	index, files, host *url.URL
	client             *http.Client
	log                *slog.Logger
	mux                *http.ServeMux
}

// New makes a Handler. It does not call the index.
func New(cfg Config) (*Handler, error) {
	index, err := base(cmp.Or(cfg.IndexURL, DefaultIndexURL))
	if err != nil {
		return nil, fmt.Errorf("read address of package index: %w", err)
	}
	files, err := base(cmp.Or(cfg.FilesURL, DefaultFilesURL))
	if err != nil {
		return nil, fmt.Errorf("read address of package files: %w", err)
	}
	h := &Handler{
		index: index, files: files, host: index.ResolveReference(&url.URL{Path: "/"}),
		client: cfg.Client, log: cfg.Logger, mux: http.NewServeMux(),
	}
	if h.client == nil {
		h.client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.mux.HandleFunc("GET /simple/{project}/{$}", h.page)
	h.mux.HandleFunc("GET /files/{path...}", func(w http.ResponseWriter, r *http.Request) { h.file(w, r, h.files) })
	h.mux.HandleFunc("GET /host/{path...}", func(w http.ResponseWriter, r *http.Request) { h.file(w, r, h.host) })
	return h, nil
}

// base parses an address that others are resolved against.
func base(address string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(address, "/") + "/")
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is no http address", address)
	}
	return u, nil
}

// ServeHTTP serves the index.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// project is what a normalised or plain name of a project looks like.
var project = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// link is the address in an anchor of a page.
var link = regexp.MustCompile(`(?i)(<a\s[^>]*?href\s*=\s*)("[^"]*"|'[^']*')`)

// page serves the list of a project's files with the links turned to this handler.
func (h *Handler) page(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("project")
	if !project.MatchString(name) {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	resp, err := h.fetch(ctx, r, h.index.ResolveReference(&url.URL{Path: name + "/"}))
	if err != nil {
		h.bad(w, r, err)
		return
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	if resp.StatusCode != http.StatusOK {
		http.Error(w, http.StatusText(resp.StatusCode), resp.StatusCode)
		return
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, pageMax+1))
	if err == nil && len(text) > pageMax {
		err = fmt.Errorf("page of %s has more than %d bytes", name, pageMax)
	}
	if err != nil {
		h.bad(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(h.rewrite(text, resp.Request.URL)) // the reader has gone when it fails
}

// rewrite turns links to files into ones to this handler. Others stay, and lead nowhere from a build.
func (h *Handler) rewrite(text []byte, page *url.URL) []byte {
	return link.ReplaceAllFunc(text, func(anchor []byte) []byte {
		parts := link.FindSubmatch(anchor)
		quote, address := parts[2][:1], string(parts[2][1:len(parts[2])-1])
		target, err := page.Parse(strings.ReplaceAll(address, "&amp;", "&"))
		if err != nil {
			return anchor
		}
		local := ""
		for _, place := range []struct {
			prefix string
			root   *url.URL
		}{{"/files/", h.files}, {"/host/", h.host}} {
			if rest, ok := below(target, place.root); ok {
				local = place.prefix + rest
				break
			}
		}
		if local == "" {
			return anchor
		}
		if target.Fragment != "" {
			local += "#" + target.EscapedFragment()
		}
		return append(append(append(append([]byte{}, parts[1]...), quote...), local...), quote...)
	})
}

// below gives the path of an address under a root.
func below(target, root *url.URL) (string, bool) {
	if target.Scheme != root.Scheme || target.Host != root.Host {
		return "", false
	}
	return strings.CutPrefix(target.EscapedPath(), root.EscapedPath())
}

// file streams one file.
func (h *Handler) file(w http.ResponseWriter, r *http.Request, root *url.URL) {
	ctx, cancel := context.WithTimeout(r.Context(), fileTimeout)
	defer cancel()
	// The part of the path as it was sent: it may hold escapes that must stay.
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	target, err := url.Parse(strings.TrimRight(root.String(), "/") + "/" + rest)
	if err != nil || strings.Contains(target.Path, "/../") {
		http.NotFound(w, r)
		return
	}
	resp, err := h.fetch(ctx, r, target)
	if err != nil {
		h.bad(w, r, err)
		return
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	for _, name := range []string{"Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "Etag", "Last-Modified"} {
		if value := resp.Header.Get(name); value != "" {
			w.Header().Set(name, value)
		}
	}
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil {
		panic(http.ErrAbortHandler) // the reader must see that the file is cut short
	}
}

// fetch asks upstream. Ranges go along: installers read a wheel's directory by them.
func (h *Handler) fetch(ctx context.Context, r *http.Request, target *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, target.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/vnd.pypi.simple.v1+html, text/html;q=0.9, */*;q=0.1")
	req.Header.Set("Accept-Encoding", "identity") // lengths and ranges are of the file itself
	for _, name := range []string{"Range", "If-Range", "User-Agent"} {
		if value := r.Header.Get(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	return h.client.Do(req)
}

// bad answers for an index that does not.
func (h *Handler) bad(w http.ResponseWriter, r *http.Request, err error) {
	h.log.WarnContext(r.Context(), "package index does not answer", "path", r.URL.Path, "error", err)
	http.Error(w, "the package index does not answer", http.StatusBadGateway)
}
