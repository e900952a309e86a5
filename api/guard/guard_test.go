package guard_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
		testbed.Diff(t, fmt.Sprintf("Host(%q)", host), want, g.Host(host))
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	g := guard.Guard{Hosts: []string{"farm.example.com"}, Origins: []string{"https://chat.example.com/", "http://localhost:3000"}}
	for name, c := range map[string]struct {
		header http.Header
		want   bool
	}{
		"NoPage":          {http.Header{}, true},
		"Typed":           {http.Header{"Sec-Fetch-Site": {"none"}}, true},
		"SameOrigin":      {http.Header{"Sec-Fetch-Site": {"same-origin"}}, true},
		"SameSite":        {http.Header{"Sec-Fetch-Site": {"same-site"}}, false},
		"CrossSite":       {http.Header{"Sec-Fetch-Site": {"cross-site"}}, false},
		"Own":             {http.Header{"Origin": {"http://LOCALHOST:8000"}}, true},
		"OwnOverTLS":      {http.Header{"Origin": {"https://localhost:8000"}}, true},
		"TrustedPort":     {http.Header{"Origin": {"http://localhost:3000"}}, true},
		"OtherPort":       {http.Header{"Origin": {"http://localhost:3001"}}, false},
		"NoPort":          {http.Header{"Origin": {"http://localhost"}}, false},
		"OtherName":       {http.Header{"Origin": {"http://127.0.0.1:8000"}}, false},
		"BelowOurName":    {http.Header{"Origin": {"http://foo.localhost:8000"}}, false},
		"LoopbackSix":     {http.Header{"Origin": {"http://[::1]:3000"}}, false},
		"Trusted":         {http.Header{"Origin": {"https://CHAT.example.com"}}, true},
		"Foreign":         {http.Header{"Origin": {"https://evil.example"}}, false},
		"OneOfTwo":        {http.Header{"Origin": {"http://localhost:8000", "https://evil.example"}}, false},
		"File":            {http.Header{"Origin": {"file://localhost"}}, false},
		"Null":            {http.Header{"Origin": {"null"}}, false},
		"UserInfo":        {http.Header{"Origin": {"http://localhost@evil.example"}}, false},
		"TrustedSub":      {http.Header{"Origin": {"https://a.chat.example.com"}}, false},
		"TrustedOverHTTP": {http.Header{"Origin": {"http://chat.example.com"}}, false},
	} {
		testbed.Diff(t, fmt.Sprintf("%s: Origin", name), c.want, g.Origin(&http.Request{Host: "localhost:8000", Header: c.header}))
	}
	// The own origin counts under the names that the server answers to, and under no name that a page chose (DNS rebinding).
	for host, want := range map[string]bool{"farm.example.com:8000": true, "[::1]:8000": true, "127.0.0.1": true, "evil.example:8000": false} {
		testbed.Diff(t, fmt.Sprintf("own origin %s", host), want, g.Origin(&http.Request{Host: host, Header: http.Header{"Origin": {"http://" + host}}}))
	}
}
