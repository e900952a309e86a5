package server

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

func importCommand(streams verbs.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "import-config FILE",
		Short: "Turn the config.toml of mcp-sandbox or python-mcp-sandbox into settings of a farm",
		Long: `Reads the config.toml of mcp-sandbox or python-mcp-sandbox and prints the equivalent settings of a farm as a TOML file.
Settings without an equivalent are listed on stderr. docs/coming-from has a page for each system.`,
		Example: "  sandfarm import-config config.toml > sandfarm.toml\n  sandfarm up --config sandfarm.toml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read settings: %w", err)
			}
			imported, err := farmd.ImportConfig(text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			for _, note := range imported.Notes {
				_, _ = fmt.Fprintln(streams.Err, "  "+note)
			}
			_, err = fmt.Fprint(streams.Out, imported.TOML)
			return err
		},
	}
}
