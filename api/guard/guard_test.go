package guard_test

import (
	"net/http"
	"testing"

	"github.com/sandfarm/sandfarm/api/guard"
)

func TestHost(t *testing.T) {
	t.Parallel()
	g := guard.Guard{Hosts: []string{"farm.example.com"}}
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:1": true, "localhost.:8000": true, "foo.localhost": true, "foo.localhost:8000": true, "127.0.0.1:8000": true,
		"127.1.2.3": true, "[::1]:8000": true, "[::1]": true, "[::ffff:127.0.0.1]:80": true, "farm.example.com:8000": true, "Farm.Example.com": true,
		"": false, "evil.example": false, "10.0.0.1": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false,
		"a.farm.example.com": false, "notlocalhost": false,
	} {
		if got := g.Host(host); got != want {
			t.Errorf("Host(%q) is %v", host, got)
		}
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	g := guard.Guard{Origins: []string{"https://chat.example.com/"}}
	for name, c := range map[string]struct {
		header http.Header
		want   bool
	}{
		"NoPage":          {http.Header{}, true},
		"SameSite":        {http.Header{"Sec-Fetch-Site": {"same-origin"}}, true},
		"CrossSite":       {http.Header{"Sec-Fetch-Site": {"cross-site"}}, false},
		"Loopback":        {http.Header{"Origin": {"http://foo.localhost:3000"}}, true},
		"LoopbackSix":     {http.Header{"Origin": {"http://[::1]:3000"}}, true},
		"Trusted":         {http.Header{"Origin": {"https://CHAT.example.com"}}, true},
		"Foreign":         {http.Header{"Origin": {"https://evil.example"}}, false},
		"OneOfTwo":        {http.Header{"Origin": {"http://localhost", "https://evil.example"}}, false},
		"File":            {http.Header{"Origin": {"file://localhost"}}, false},
		"Null":            {http.Header{"Origin": {"null"}}, false},
		"UserInfo":        {http.Header{"Origin": {"http://localhost@evil.example"}}, false},
		"TrustedSub":      {http.Header{"Origin": {"https://a.chat.example.com"}}, false},
		"TrustedOverHTTP": {http.Header{"Origin": {"http://chat.example.com"}}, false},
	} {
		if got := g.Origin(&http.Request{Header: c.header}); got != c.want {
			t.Errorf("%s: Origin is %v", name, got)
		}
	}
}
