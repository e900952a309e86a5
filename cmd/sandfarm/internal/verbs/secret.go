package verbs

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// secrets reads the values of the secrets that flags name: from the environment or from files, never from the arguments, which every program
// of the machine can read.
func (f *specFlags) secrets(getenv func(string) string) (map[string]wire.Secret, error) {
	if len(f.hidden) == 0 {
		return nil, nil // none
	}
	out := map[string]wire.Secret{}
	for _, text := range f.hidden {
		text, file, fromFile := strings.Cut(text, "@")
		name, place, ok := strings.Cut(text, "=")
		host, header, both := strings.Cut(place, ":")
		if _, twice := out[name]; !ok || !both || name == "" || twice {
			return nil, usagef("--secret %q: write each secret once, as NAME=HOST:HEADER or NAME=HOST:HEADER@FILE", text)
		}
		value, err := secretValue(getenv, "--secret "+name, text, name, file, fromFile)
		if err != nil {
			return nil, err
		}
		out[name] = wire.Secret{Host: host, Header: header, Value: value}
	}
	return out, nil
}

// secretValue is that of the variable NAME, or the content of a file. what and text are what the message about a missing one names.
func secretValue(getenv func(string) string, what, text, name, file string, fromFile bool) (string, error) {
	value := getenv(name)
	if fromFile {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", usagef("%s: %v", what, err)
		}
		value = strings.TrimRight(string(content), "\r\n")
	}
	if value == "" {
		return "", usagef("%s: it has no value: set the variable %s, or name a file: %s@FILE", what, name, text)
	}
	return value, nil
}

func (a *app) sandboxSecret() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "secret ID NAME[@FILE]…", Short: "Give secrets of a sandbox new values while it runs",
		Long: `Give secrets of a sandbox new values while it runs, as when a key is rotated. Requests from then on have the new ones. A value is that
of the variable NAME here, or the content of FILE. Names, hosts and headers of secrets stay as they were created.`,
		Example: `  GITHUB_TOKEN=… sandfarm sandbox secret sbx_… GITHUB_TOKEN
  sandfarm sandbox secret sbx_… GITHUB_TOKEN@token.txt`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, -1, "the sandbox's ID and the name of a secret"), func(ctx context.Context, c *client.Client, args []string) error {
		values := map[string]wire.NewSecret{}
		for _, text := range args[1:] {
			name, file, fromFile := strings.Cut(text, "@")
			if _, twice := values[name]; name == "" || twice {
				return usagef("%q: write each secret once, as NAME or NAME@FILE", text)
			}
			value, err := secretValue(a.Getenv, name, name, name, file, fromFile)
			if err != nil {
				return err
			}
			values[name] = wire.NewSecret{Value: value}
		}
		s, err := c.Update(ctx, args[0], wire.UpdateRequest{Secrets: values})
		if err != nil {
			return err
		}
		return a.showSandbox(s)
	})
}
