package farm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A request may have several secrets.
func TestErrorOfASecretsValueNamesTheSecret(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"12345678":              "",
		"1234567":               "the value of the secret TOKEN has 7 bytes; from 8 to 64 are allowed",
		strings.Repeat("v", 65): "the value of the secret TOKEN has 65 bytes; from 8 to 64 are allowed",
		"12345678 ":             "the value of the secret TOKEN has characters that no header can have",
		"%41%42%43%44/":         "the value of the secret TOKEN has less than 8 bytes without its backslashes and escapes",
		"Bearer %41%42%43":      "the part of the value of the secret TOKEN behind its first space has less than 8 bytes",
		"Bearer 1234":           "the part of the value of the secret TOKEN behind its first space has less than 8 bytes",
	} {
		err := farm.CheckSecretValue("TOKEN", value, 64)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(farm.MessageOf(err), want) {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
}

// What stands around an escaped secret may look like a part of an escape that its own characters continue.
func TestEscapedTextIsFoundFromEachPlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		secret, escaped string
		before, after   []string
	}{
		{"ab+cdefgh", "ab%2Bcdefgh", []string{"", "%", "x%25", `\`, "%2", "%%", "%2525", `\u00`, `\\x`, "%2%35"}, []string{""}},
		{"25ab/cdef", `25ab\/cdef`, []string{"%", "%25", `\x`, `\u`, `\u00`}, []string{""}},
		{"u0041/cdef", `u0041\/cdef`, []string{`\`, `\\`, "%5C", "%255c"}, []string{""}},
		{"3334/3334", "3334%2F3334", []string{"%", "%3", "%%%%", "%3%3"}, []string{"3334"}},
		{"abcdef/gh%4", "abcdef%2Fgh%254", []string{"", "%"}, []string{"", "1"}},
		{`abcdef/gh\u00`, `abcdef\/gh\\u00`, []string{"", "%"}, []string{"", "41"}},
		{"aaaa aaaab", "aaaa+aaaab", []string{"aaaa+aaaa", "aaaa+aaa"}, []string{"b"}},
	} {
		var search farm.EscapeSearch
		sought := []farm.Sought{farm.NewSought([]byte("another secret"), false), farm.NewSought([]byte(c.secret), false)}
		for _, before := range c.before {
			for _, after := range c.after {
				if text := before + c.escaped + after; !search.Finds([]byte(text), sought) {
					t.Errorf("%s is not found in %s", c.secret, text)
				}
				if text := before + c.escaped[:4] + "|" + c.escaped[4:] + after; search.Finds([]byte(text), sought) {
					t.Errorf("%s is found in %s", c.secret, text)
				}
			}
		}
	}
}

// FuzzUnescaped escapes a text as encoders do, one or two of them, and takes the escapes away.
func FuzzUnescaped(f *testing.F) {
	inJSON := func(text string) string {
		encoded, _ := json.Marshal(text)
		return string(encoded[1 : len(encoded)-1])
	}
	each := func(format string) func(string) string {
		return func(text string) (out string) {
			for i := range len(text) {
				out += fmt.Sprintf(format, text[i])
			}
			return out
		}
	}
	encoders := []func(string) string{
		inJSON, url.QueryEscape, url.PathEscape, func(text string) string { return strings.ReplaceAll(inJSON(text), "/", `\/`) },
		func(text string) string {
			return regexp.MustCompile("%..").ReplaceAllStringFunc(url.QueryEscape(text), strings.ToLower)
		},
		each("%%%02X"), each(`\u%04x`), each(`\u%04X`), each(`\x%02x`),
	}
	for _, text := range []string{"ghp_Zk39xQ/va+lue==", `sk-<23>&"45'`, "a b"} {
		f.Add(text, uint8(0), uint8(1))
		f.Add(text, uint8(3), uint8(4))
		f.Add(text, uint8(6), uint8(3))
	}
	f.Fuzz(func(t *testing.T, text string, first, second uint8) {
		if got := farm.Unescaped([]byte(text)); len(got) > len(text) || bytes.ContainsAny(got, `\+`) {
			t.Fatalf("%q is unescaped as %q", text, got)
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' || r == '%' || r == '\\' }) {
			return
		}
		want := strings.ReplaceAll(text, "+", " ")
		once := encoders[int(first)%len(encoders)](text)
		for _, escaped := range []string{once, encoders[int(second)%len(encoders)](once)} {
			if got := string(farm.Unescaped([]byte(escaped))); got != want {
				t.Fatalf("%q, escaped as %q, is unescaped as %q, want %q", text, escaped, got, want)
			}
		}
	})
}

// FuzzEscapeSearch compares a search with what unescaping from each place finds.
func FuzzEscapeSearch(f *testing.F) {
	for _, text := range []string{`x%25ab%2Bc`, `%%%32%35`, `\\u\x304%30`, `\u00e9\xe9%C3%A9é`, "aab+aab aabaab"} {
		f.Add(text, "ab+c")
		f.Add(text, "aab ")
		f.Add(text, "é")
	}
	f.Fuzz(func(t *testing.T, text, secret string) {
		sought := farm.Unescaped([]byte(secret))
		if len(text) > 200 || len(sought) == 0 || !utf8.Valid(sought) || len(secret) > 7 { // longer ones may be found by their beginning
			return
		}
		for _, fold := range []bool{false, true} {
			form := func(text string) string {
				out := bytes.Clone(farm.Unescaped([]byte(text)))
				for i, b := range out {
					if fold && b >= 'A' && b <= 'Z' {
						out[i] += 'a' - 'A'
					}
				}
				return string(out)
			}
			want := false
			for i := range len(text) {
				want = want || strings.HasPrefix(form(text[i:]), form(secret))
			}
			var search farm.EscapeSearch
			if got := search.Finds([]byte(text), []farm.Sought{farm.NewSought([]byte(secret), fold)}); got != want {
				t.Fatalf("%q in %q, fold %v: %v, want %v", secret, text, fold, got, want)
			}
		}
	})
}

// The values of a host may have too many bytes together only where they had before.
func TestSecretsOfAHostAreLimitedTogether(t *testing.T) {
	t.Parallel()
	secrets := []farm.Secret{{Name: "A", Host: "a.example.com"}, {Name: "B", Host: "a.example.com"}, {Name: "C", Host: "c.example.com"}}
	values := func(a, b, c int) map[string]string {
		return map[string]string{"A": strings.Repeat("a", a), "B": strings.Repeat("b", b), "C": strings.Repeat("c", c)}
	}
	const most = farm.MaxHostSecretBytes
	for _, c := range []struct {
		before, values map[string]string
		ok             bool
	}{
		{nil, values(most-9, 8, most), true},
		{nil, values(most-8, 8, most), true},
		{nil, values(most-8, 9, 8), false},
		{values(most, most, 8), values(most, most, 8), true},
		{values(most, most, 8), values(most, most-1, 8), true},
		{values(most, most, 8), values(most, most+1, 8), false},
	} {
		if err := farm.CheckHostSecrets(secrets, c.values, c.before); (err == nil) != c.ok || err != nil && farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("%d and %d bytes, before %d: %v", len(c.values["A"]), len(c.values["B"]), len(c.before["A"])+len(c.before["B"]), err)
		}
	}
}
