package farm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func rule(t *testing.T, text string) farm.HostRule {
	t.Helper()
	r, err := farm.ParseHostRule(text)
	testbed.Must(t, err)
	return r
}

func TestHostRuleText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"api.github.com":               "api.github.com",
		"API.GitHub.Com.":              "api.github.com",
		" *.githubusercontent.com ":    "*.githubusercontent.com",
		"api.example.com:8443":         "api.example.com:8443",
		"GET,HEAD data.example.com":    "GET,HEAD data.example.com",
		"HEAD,GET,GET  example.com":    "GET,HEAD example.com",
		"HEAD;GET data.example.com":    "GET,HEAD data.example.com",
		"M-SEARCH *.example.com:81":    "M-SEARCH *.example.com:81",
		"*":                            "*",
		"GET *:8080":                   "GET *:8080",
		"xn--bcher-kva.example":        "xn--bcher-kva.example",
		"my_bucket.s3.example.com":     "my_bucket.s3.example.com",
		"1.2.3.4.example.com":          "1.2.3.4.example.com",
		"4chan.example:1":              "4chan.example:1",
		"example.com:65535":            "example.com:65535",
		"example.com.:443":             "example.com:443",
		"0x.7f.example":                "0x.7f.example",
		"a.b":                          "a.b",
		"web.localhost.example":        "web.localhost.example",
		"web.mylocalhost":              "web.mylocalhost",
		strings.Repeat("a", 63) + ".b": strings.Repeat("a", 63) + ".b",
	} {
		r, err := farm.ParseHostRule(text)
		if err != nil || r.String() != want {
			t.Errorf("ParseHostRule(%q) = %q, %v; want %q", text, r, err, want)
		}
		var again farm.HostRule
		if err := again.UnmarshalText([]byte(r.String())); err != nil || again != r {
			t.Errorf("the text %q gives %q, %v", r, again, err)
		}
	}
}

func TestHostRuleRefusesWhatIsNoName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(strings.Repeat("a", 49)+".", 5) + "abc" // 253 characters
	for _, text := range []string{long, "*." + long[2:], long + "."} {
		if _, err := farm.ParseHostRule(text); err != nil {
			t.Errorf("%d characters: %v", len(text), err)
		}
	}
	for text, says := range map[string]string{
		"":                                       "1 to 253",
		" ":                                      "1 to 253",
		"a" + long:                               "1 to 253",
		"localhost":                              "the sandbox itself",
		"web.localhost:8335":                     "the sandbox itself",
		"GET a.web.LocalHost.":                   "the sandbox itself",
		"*.localhost":                            "the sandbox itself",
		"*.com":                                  "two parts",
		"**":                                     "letters, digits",
		"*.*.example.com":                        "letters, digits",
		"a*.example.com":                         "letters, digits",
		"*example.com":                           "letters, digits",
		"a.*.example.com":                        "letters, digits",
		"127.0.0.1":                              "address",
		"127.1":                                  "address",
		"2130706433":                             "address",
		"0x7f000001":                             "address",
		"0x7f.0.0.0x1":                           "address",
		"0x7f.0.0.0X1":                           "address",
		"example.0x":                             "address",
		"0177.0.0.01":                            "address",
		"1.2.3.4.":                               "address",
		"*.1.2":                                  "address",
		"::1":                                    "address",
		"[::1]":                                  "address",
		"[::1]:443":                              "address",
		"example.com:0":                          "1 to 65535",
		"example.com:65536":                      "1 to 65535",
		"example.com:":                           "1 to 65535",
		"example.com:443:443":                    "1 to 65535",
		"example.com:+443":                       "1 to 65535",
		"example.com:0443":                       "1 to 65535",
		"example.com:http":                       "1 to 65535",
		"example.com..":                          "empty",
		"a..example.com":                         "empty",
		".example.com":                           "empty",
		"-a.example.com":                         "hyphen",
		"a-.example.com":                         "hyphen",
		strings.Repeat("a", 64) + ".example.com": "63",
		"bücher.example":                         "xn--",
		"\uff45xample.com":                       "xn--",
		"\u212a.example.com":                     "xn--", // a letter whose lower case is k
		"https://example.com":                    "alone",
		"user@example.com":                       "alone",
		"example.com/path":                       "alone",
		"exa mple.com":                           "methods",
		"get example.com":                        "methods",
		"GET, HEAD example.com":                  "methods",
		"CONNECT example.com":                    "methods",
		",GET example.com":                       "methods",
		"GET\texample.com":                       "letters, digits",
		"example.com\x00.evil.example":           "letters, digits",
		"example.com\n":                          "",
		strings.Repeat("A", 33) + " example.com": "methods",
		strings.Repeat("A,", 16) + "A a.example": "methods",
		strings.Repeat("x", 5000):                "at most",
	} {
		r, err := farm.ParseHostRule(text)
		if says == "" { // space around a rule is no mistake
			if err != nil {
				t.Errorf("ParseHostRule(%q): %v", text, err)
			}
			continue
		}
		if farm.CodeOf(err) != farm.CodeInvalid || !strings.Contains(err.Error(), says) || (r != farm.HostRule{}) {
			t.Errorf("ParseHostRule(%.60q) = %q, %v; want an error with %q", text, r, err, says)
		}
	}
}

func TestHostRuleAllows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, host string
		port       int
		want       bool
	}{
		{"example.com", "example.com", 443, true},
		{"example.com", "example.com", 80, true},
		{"example.com", "example.com", 8080, false},
		{"example.com", "example.com", 0, false},
		{"example.com", "www.example.com", 443, false},
		{"example.com", "evilexample.com", 443, false},
		{"example.com", "example.com.evil", 443, false},
		{"example.com:8443", "example.com", 8443, true},
		{"example.com:8443", "example.com", 443, false},
		{"*.example.com", "a.example.com", 443, true},
		{"*.example.com", "a.b.example.com", 443, true},
		{"*.example.com", "example.com", 443, false},
		{"*.example.com", ".example.com", 443, true}, // no such host is normal
		{"*.example.com", "evilexample.com", 443, false},
		{"*.example.com", "a.example.com.evil", 443, false},
		{"*", "anything.example", 443, true},
		{"*", "anything.example", 22, false},
		{"*:22", "anything.example", 22, true},
	} {
		testbed.Diff(t, fmt.Sprintf("%q allows %s:%d", c.rule, c.host, c.port), c.want, rule(t, c.rule).Allows(c.host, c.port))
	}
	if (farm.HostRule{}).Allows("example.com", 443) || (farm.HostRule{}).Allows("", 443) {
		t.Error("the zero value allows something")
	}
	for method, want := range map[string]bool{"GET": true, "HEAD": true, "POST": false, "get": false, "": false, "GET,HEAD": false, "CONNECT": false} {
		testbed.Diff(t, fmt.Sprintf("AllowsMethod(%q)", method), want, rule(t, "GET,HEAD a.example").AllowsMethod(method))
	}
	if !rule(t, "a.example").AllowsMethod("CONNECT") || !rule(t, "*").Any() || rule(t, "*.a.example").Any() {
		t.Error("a rule without methods allows every method, and only * allows every host")
	}
}

func TestHostRuleCovers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, other string
		want        bool
	}{
		{"*", "example.com", true},
		{"*", "*", true},
		{"*", "*.example.com", true},
		{"*", "example.com:80", true},
		{"*", "example.com:8080", false},
		{"*:8080", "example.com:8080", true},
		{"*:8080", "example.com", false},
		{"*.example.com", "a.example.com", true},
		{"*.example.com", "*.example.com", true},
		{"*.example.com", "*.a.example.com", true},
		{"*.a.example.com", "*.example.com", false},
		{"*.example.com", "example.com", false},
		{"*.example.com", "*.evilexample.com", false},
		{"*.example.com", "*", false},
		{"example.com", "example.com", true},
		{"example.com", "*.example.com", false},
		{"example.com", "a.example.com", false},
		{"example.com", "example.com:443", true},
		{"example.com:443", "example.com", false},
		{"example.com", "GET example.com", true},
		{"GET example.com", "example.com", false},
		{"GET,HEAD example.com", "GET example.com", true},
		{"GET example.com", "GET,HEAD example.com", false},
	} {
		testbed.Diff(t, fmt.Sprintf("%q covers %q", c.rule, c.other), c.want, rule(t, c.rule).Covers(rule(t, c.other)))
	}
	if (farm.HostRule{}).Covers(rule(t, "a.example")) || rule(t, "*").Covers(farm.HostRule{}) {
		t.Error("the zero value covers something or is covered")
	}
}

func TestNormalHost(t *testing.T) {
	t.Parallel()
	if name, ok := farm.NormalHost("API.Example.COM."); name != "api.example.com" || !ok {
		t.Errorf("%q, %v", name, ok)
	}
	for _, host := range []string{"", ".", "localhost", "10.0.0.1", "[::1]", "fe80::1%eth0", "*.example.com", "a.example.com:443"} {
		if name, ok := farm.NormalHost(host); ok || name != "" {
			t.Errorf("NormalHost(%q) = %q, %v", host, name, ok)
		}
	}
}

func FuzzHostRule(f *testing.F) {
	for _, s := range []string{"", "*", "*.a.example:1", "GET,HEAD a.example", "127.1", "0x7f.1", "[::1]:443", "a.example.", "ü.example", "A-.b", "GET *:65535", "\xff.example"} {
		f.Add(s, "a.example", 443)
	}
	f.Fuzz(func(t *testing.T, text, asked string, port int) {
		r, err := farm.ParseHostRule(text)
		if err != nil {
			if farm.CodeOf(err) != farm.CodeInvalid || !utf8.ValidString(err.Error()) || len(err.Error()) > 800 {
				t.Fatalf("ParseHostRule(%q) gives the error %q", text, err)
			}
			return
		}
		again, err := farm.ParseHostRule(r.String())
		if err != nil || again != r || !r.Covers(r) {
			t.Fatalf("%q is %q, and that is %q, %v", text, r, again, err)
		}
		host, ok := farm.NormalHost(asked)
		if !ok || !r.Allows(host, port) {
			return
		}
		name := strings.TrimPrefix(strings.Split(r.String()[strings.LastIndex(r.String(), " ")+1:], ":")[0], "*")
		if !strings.HasSuffix(host, name) || (!strings.HasPrefix(name, ".") && name != "" && host != name) {
			t.Fatalf("%q allows %q", r, host)
		}
		if !slices.ContainsFunc([]string{host, host + ":80", host + ":443", host + ":" + r.String()[strings.LastIndex(r.String(), ":")+1:]}, func(s string) bool {
			exact, err := farm.ParseHostRule(s)
			return err == nil && exact.Allows(host, port)
		}) {
			t.Fatalf("%q allows port %d of %q", r, port, host)
		}
	})
}
