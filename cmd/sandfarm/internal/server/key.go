package server

import (
	"crypto/sha256"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// keyCommand makes API keys. A farm knows only their hashes, so no farm is needed.
func keyCommand(streams verbs.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "key [TENANT]",
		Short: "Make an API key, and print the setting that lets a farm accept it",
		Long: `Makes a random API key for a tenant ("default" without a name) and prints two variables: the key, for clients, and its hash,
for the farm. Several entries of SANDFARM_API_KEYS are separated by commas. The key is not stored anywhere.`,
		Example: "  sandfarm config key\n  sandfarm config key team-blue",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			tenant := "default"
			if len(args) == 1 {
				tenant = args[0]
			}
			if !farm.ValidTenant(tenant) {
				return fmt.Errorf("the tenant %q must be 1 to %d letters, digits, dots, dashes and underscores, and not only dots", tenant, farm.MaxTenantBytes)
			}
			key := service.NewSecret()
			_, err := fmt.Fprintf(streams.Out, "SANDFARM_API_KEY=%s\nSANDFARM_API_KEYS=%s:%x\n", key, tenant, sha256.Sum256([]byte(key)))
			return err
		},
	}
}
