package webhook_test

import (
	"net/http"
	"net/netip"
	"net/url"
	"testing"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/webhook"
)

// Callback URLs come from callers. What is accepted can be requested, has no user, and is not at a private address.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{
		"", "https://good.example/hook", "http://1.1.1.1/", "http://127.0.0.1/", "http://[::1]:80/", "http://[::ffff:10.0.0.1]/", "http://0x7f000001/", "http://2130706433/", "http://u:p@good.example/", "http://good.example@127.0.0.1/",
		"http://good.example:80@127.0.0.1/", "http://127.1/", "//good.example", "ftp://good.example/", "http://good.example\\@127.0.0.1/", "http://good.example%00.x/", "http://[fe80::1%25lo]/", "HTTP://GOOD.example./", "http://good.example:99999/", "http://good.example/\r\nX: y",
	} {
		f.Add(seed)
	}
	policy := webhook.Policy{Resolver: names{"good.example": {"1.1.1.1"}}}
	f.Fuzz(func(t *testing.T, raw string) {
		if err := policy.Check(t.Context(), raw); err != nil {
			if farm.CodeOf(err) != farm.CodeInvalid {
				t.Fatalf("%q was refused with %v", raw, err)
			}
			return
		}
		u, err := url.Parse(raw)
		if err != nil || u.User != nil || len(raw) > webhook.MaxURLBytes {
			t.Fatalf("%q was accepted", raw)
		}
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !egressproxy.Public(ip) {
			t.Fatalf("%q leads to a private address", raw)
		}
		if _, err := http.NewRequest(http.MethodPost, raw, nil); err != nil {
			t.Fatalf("%q was accepted and cannot be requested: %v", raw, err)
		}
	})
}
