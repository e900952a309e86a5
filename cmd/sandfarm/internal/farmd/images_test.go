package farmd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
)

func TestAllowedImagesAreIDs(t *testing.T) {
	t.Parallel()
	id := "sha256:" + strings.Repeat("a1", 32)
	if got := load(t, file(t, "[images]\nallowed = [\""+id+"\"]")).Worker.AllowedImages; !slices.Equal(got, []string{id}) {
		t.Errorf("workers may use %q", got)
	}
	for _, wrong := range []string{"python", "sandfarm/python:latest", "repo@" + id, id + "0", strings.ToUpper(id), id[:20], ""} {
		if _, err := farmd.Load(file(t, "[images]\nallowed = [\""+wrong+"\"]")); err == nil || !strings.Contains(err.Error(), "images.allowed contains") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// A key that is missing or no key stops the start, rather than letting every image in.
func TestSignaturesNeedAKey(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(folder, "cosign.pub")
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := load(t, file(t, "[images]")).Worker.Signatures; got != nil {
		t.Errorf("without settings: %v", got)
	}
	got := load(t, file(t, "[images]\nsignature_key = \""+keyFile+"\"\nsignatures = \""+folder+"\"")).Worker.Signatures
	if got == nil || got.Path != folder || len(got.Keys) != 1 || !got.Keys[0].Equal(key.Public()) {
		t.Errorf("workers check %+v", got)
	}
	for _, c := range []struct{ settings, want string }{
		{"signature_key = \"" + keyFile + "\"", "images.signature_key and images.signatures belong together"},
		{"signatures = \"" + folder + "\"", "images.signature_key and images.signatures belong together"},
		{"signature_key = \"" + folder + "/none\"\nsignatures = \"" + folder + "\"", "images.signature_key: "},
	} {
		if _, err := farmd.Load(file(t, "[images]\n"+c.settings)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.settings, err)
		}
	}
}
