package farmd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Verbs with --local print their answers, and no lines of a log.
func TestOperatorLogsNothing(t *testing.T) {
	redis := miniredis.RunT(t)
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "redis://"+redis.Addr())
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	testbed.Must(t, err)
	old := os.Stderr
	os.Stderr = file
	t.Cleanup(func() { os.Stderr = old; _ = file.Close() })
	direct, done, err := farmd.Operator(t.Context(), load(t, ""), "test")
	testbed.Must(t, err)
	c, err := client.New(client.DefaultURL, client.WithHTTPClient(direct))
	testbed.Must(t, err)
	cpus := 1.0
	if _, err := c.SetTenant(t.Context(), "acme", wire.TenantRequest{MaxCPUs: &cpus}); err != nil {
		t.Error(err)
	}
	if err := done(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if text, err := os.ReadFile(file.Name()); err != nil || len(text) > 0 {
		t.Errorf("standard error has %q, %v", text, err)
	}
}

// A command with --local where no farm runs has one error, without the lines that the Redis client logs for each try.
func TestLocalWithoutFarmLogsNothing(t *testing.T) {
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "")
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	testbed.Must(t, err)
	defer func() { _ = file.Close() }()
	old, err := unix.Dup(2) // that client has kept its os.Stderr
	testbed.Must(t, err)
	if err := unix.Dup3(int(file.Fd()), 2, 0); err != nil { //nolint:gosec // a descriptor is small
		t.Fatal(err)
	}
	_, _, failed := farmd.Local("test")(t.Context(), "")
	testbed.Must(t, errors.Join(unix.Dup3(old, 2, 0), unix.Close(old)))
	if failed == nil || !strings.Contains(failed.Error(), "no farm of this machine runs") {
		t.Errorf("Local: %v", failed)
	}
	if text, err := os.ReadFile(file.Name()); err != nil || len(text) > 0 {
		t.Errorf("standard error has %q, %v", text, err)
	}
}

// Who can reach Redis gets in without a key, even if the farm has keys.
func TestOperatorNeedsNoKey(t *testing.T) {
	redis := miniredis.RunT(t)
	t.Setenv("SANDFARM_DATA", t.TempDir())
	t.Setenv("SANDFARM_REDIS_URL", "redis://"+redis.Addr())
	s := load(t, "")
	for range 2 { // the second time the farm has keys
		direct, done, err := farmd.Operator(t.Context(), s, "test")
		testbed.Must(t, err)
		c, err := client.New(client.DefaultURL, client.WithHTTPClient(direct))
		testbed.Must(t, err)
		made, err := c.CreateKey(t.Context(), wire.KeyRequest{Tenant: "ops", Scopes: []string{"admin"}})
		if err != nil || made.Secret == "" {
			t.Errorf("%+v, %v", made, err)
		}
		if err := done(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}

func TestOperatorOfNoFarm(t *testing.T) {
	t.Setenv("SANDFARM_DATA", filepath.Join(t.TempDir(), "data"))
	if _, _, err := farmd.Operator(t.Context(), load(t, ""), "test"); err == nil || !strings.Contains(err.Error(), "sandfarm up") {
		t.Errorf("without a farm: %v", err)
	}
}

func TestConfigKeyPrintsAKeyAndTheSettingForIt(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{"default": nil, "team-blue": {"team-blue"}} {
		var out testbed.Log
		streams := verbs.Streams{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }}
		root := &cobra.Command{Use: "sandfarm"}
		farmd.Add(root, streams, verbs.Add(root, streams), "test")
		root.SetArgs(append([]string{"config", "key"}, args...))
		testbed.Must(t, root.ExecuteContext(t.Context()))
		found := regexp.MustCompile(`^SANDFARM_API_KEY=(sf_[0-9a-f]{48})\nSANDFARM_API_KEYS=(.*)\n$`).FindStringSubmatch(out.String())
		if found == nil {
			t.Fatalf("printed %q", out.String())
		}
		var setting api.KeyConfig
		testbed.Must(t, setting.UnmarshalText([]byte(found[2])))
		sum := sha256.Sum256([]byte(found[1]))
		if setting.Tenant != want || setting.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%q is no setting for tenant %s and key %s", found[2], want, found[1])
		}
	}
}

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
	testbed.Must(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	testbed.Must(t, err)
	keyFile := filepath.Join(folder, "cosign.pub")
	testbed.Must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600))
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
