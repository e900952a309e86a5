package images_test

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// A build reaches the hosts of the options only, by default Debian's, and none that lead to this machine.
func TestHostsOfABuild(t *testing.T) {
	t.Parallel()
	rule := func(text string) farm.HostRule {
		r, err := farm.ParseHostRule(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, c := range map[string]struct {
		hosts []farm.HostRule
		url   string
		want  int
	}{
		"NotDebian": {nil, "http://example.org/", http.StatusForbidden},
		"OtherPort": {nil, "http://deb.debian.org:8080/", http.StatusForbidden},
		"Address":   {nil, "http://127.0.0.1/", http.StatusForbidden},
		"NotTheirs": {[]farm.HostRule{rule("mirror.example.org")}, "http://deb.debian.org/", http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeEngine{tags: map[string]bool{}, during: func(ctx context.Context, args map[string]string) error {
				proxy, err := url.Parse(args["http_proxy"])
				if err != nil {
					return err
				}
				transport := &http.Transport{Proxy: http.ProxyURL(proxy)}
				defer transport.CloseIdleConnections()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
				if err != nil {
					return err
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if resp.StatusCode != c.want {
					t.Errorf("%s: %s, want %d", c.url, resp.Status, c.want)
				}
				return nil
			}}
			if _, err := images.Build(t.Context(), "python", f, images.Options{Hosts: c.hosts}, nil); err != nil {
				t.Fatal(err)
			}
			if f.open != 0 {
				t.Errorf("%d networks are left", f.open)
			}
		})
	}
}
