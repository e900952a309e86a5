//go:build integration

package install_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// realIndex serves the public indexes.
func realIndex(tb testing.TB) http.Handler {
	tb.Helper()
	mux := http.NewServeMux()
	for prefix, target := range map[string]string{
		"/pypi/simple/": "https://pypi.org/simple/", "/pypi/files/": "https://files.pythonhosted.org/", "/npm/": "https://registry.npmjs.org/",
	} {
		to, err := url.Parse(target)
		agenttest.Must(tb, err)
		mux.Handle(prefix, http.StripPrefix(strings.TrimSuffix(prefix, "/"), &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Header.Del("Accept-Encoding") // no compression, so that links can be rewritten
			},
			ModifyResponse: func(res *http.Response) error {
				if !strings.Contains(res.Header.Get("Content-Type"), "json") && !strings.Contains(res.Header.Get("Content-Type"), "html") {
					return nil
				}
				raw, err := io.ReadAll(res.Body)
				if err != nil {
					return err
				}
				raw = bytes.ReplaceAll(raw, []byte("https://files.pythonhosted.org/"), []byte("/pypi/files/"))
				raw = bytes.ReplaceAll(raw, []byte("https://registry.npmjs.org/"), []byte("http://"+res.Request.Header.Get("X-Own")+"/npm/"))
				res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
				res.Header.Set("Content-Length", strconv.Itoa(len(raw)))
				return nil
			},
		}))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Own", r.Host)
		mux.ServeHTTP(w, r)
	})
}

// installing starts an agent that can install packages from the public indexes.
func installing(tb testing.TB) *agenttest.Agent {
	tb.Helper()
	tool := agenttest.UV(tb)
	return agenttest.StartIndexed(tb, agenttest.KernelPath(tb), realIndex(tb), func(c *server.Config) { c.UV = tool })
}

// packages returns an execution that installs Python packages.
func packages(names ...string) agent.Spec {
	return agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerPip, Packages: names}}
}
