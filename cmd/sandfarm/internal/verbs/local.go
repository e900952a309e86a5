package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
)

// OpenLocal connects to the farm of this machine without its API, with the rights of who may read its data. config is the file of
// its settings; "" for the default. close ends the connection.
type OpenLocal func(ctx context.Context, config string) (farm *http.Client, close func() error, err error)

// admin gives a group of verbs for operators the flag --local, where a farm can run.
func (a *app) admin(c *cobra.Command) *cobra.Command {
	if a.Local == nil {
		return c
	}
	c.PersistentFlags().BoolVar(&a.local, "local", false, "use the farm of this machine directly, without an API key: for those who may read its data directory, or its SANDFARM_REDIS_URL")
	c.PersistentFlags().StringVar(&a.config, "config", a.Getenv("SANDFARM_CONFIG"), "with --local: TOML `FILE` with the farm's settings")
	_ = c.MarkPersistentFlagFilename("config", "toml")
	return c
}

// refused adds to an error of a verb for operators, whom the farm refused for lack of a key or its scope, that on the farm's host --local needs none.
func (a *app) refused(cmd *cobra.Command, err error) error {
	if client.CodeOf(err) != "unauthorized" || a.local || cmd.Flags().Lookup("local") == nil {
		return err
	}
	return errors.Join(err, &hint{text: "On the farm's host, --local needs no key."})
}

// connect makes the client of a verb. close ends what it opened.
func (a *app) connect(ctx context.Context) (c *client.Client, close func() error, err error) {
	if !a.local {
		c, err = a.client("")
		return c, func() error { return nil }, err
	}
	direct, close, err := a.Local(ctx, a.config)
	if err != nil {
		return nil, nil, err
	}
	c, err = client.New(client.DefaultURL, client.WithHTTPClient(direct), client.WithUserAgent("sandfarm-cli"), client.WithRetryNotice(a.sayRetry))
	return c, close, err
}

// apiKey is the key that flags and environment give: --key, --key-file, SANDFARM_API_KEY, SANDFARM_API_KEY_FILE.
func (a *app) apiKey() (string, error) {
	if key := a.key; key != "" {
		return key, nil
	}
	file := a.keyFile
	if file == "" {
		if key := a.Getenv("SANDFARM_API_KEY"); key != "" {
			return key, nil
		}
		file = a.Getenv("SANDFARM_API_KEY_FILE")
	}
	if file == "" {
		return "", nil
	}
	return readKey(file)
}

// maxKeyFile is the largest key file, in bytes: another file was named by mistake if it is larger.
const maxKeyFile = 4096

// readKey reads a key from a file. It refuses a file that other users can read.
func readKey(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read the API key: %w", err)
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return "", fmt.Errorf("the key file %s can be used by other users of this machine (mode %04o): run chmod 600 on it, and revoke the key if somebody may have read it", path, mode)
	}
	if !info.Mode().IsRegular() || info.Size() > maxKeyFile {
		return "", fmt.Errorf("%s is no key file: it must hold one API key", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the API key: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
