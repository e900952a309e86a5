package farm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

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
