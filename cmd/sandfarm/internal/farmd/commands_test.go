package farmd_test

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestConfigKeyPrintsAKeyAndTheSettingForIt(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{"default": nil, "team-blue": {"team-blue"}} {
		var out testbed.Log
		streams := verbs.Streams{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }}
		root := &cobra.Command{Use: "sandfarm"}
		farmd.Add(root, streams, verbs.Add(root, streams), "test")
		root.SetArgs(append([]string{"config", "key"}, args...))
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`^SANDFARM_API_KEY=(sf_[0-9a-f]{48})\nSANDFARM_API_KEYS=(.*)\n$`).FindStringSubmatch(out.String())
		if found == nil {
			t.Fatalf("printed %q", out.String())
		}
		var setting api.KeyConfig
		if err := setting.UnmarshalText([]byte(found[2])); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(found[1]))
		if setting.Tenant != want || setting.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%q is no setting for tenant %s and key %s", found[2], want, found[1])
		}
	}
}
