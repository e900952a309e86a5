package server

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// keyBytes is the length of a new key before it is written in hex.
const keyBytes = 24

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
			var secret [keyBytes]byte
			_, _ = rand.Read(secret[:]) // never fails
			key := "sf_" + hex.EncodeToString(secret[:])
			_, err := fmt.Fprintf(streams.Out, "SANDFARM_API_KEY=%s\nSANDFARM_API_KEYS=%s:%x\n", key, tenant, sha256.Sum256([]byte(key)))
			return err
		},
	}
}
