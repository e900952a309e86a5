package farm_test

import (
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
		"Bearer 1234":           "the part of the value of the secret TOKEN behind its first space has less than 8 bytes",
	} {
		err := farm.CheckSecretValue("TOKEN", value, 64)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(farm.MessageOf(err), want) {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
}
