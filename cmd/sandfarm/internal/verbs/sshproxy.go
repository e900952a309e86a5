package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/sshproxy"
)

func (a *app) sshProxy() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "ssh-proxy HOST", Short: "Serve SSH for a sandbox on this program's input and output",
		Long: `Serve SSH for a sandbox, for OpenSSH's ProxyCommand. HOST is the sandbox's ID, with or without .sandfarm. "sandfarm
ssh-config" prints the configuration. Shells, commands, sftp (and so scp) and connections to ports of the sandbox work.`,
		Example: `  ssh -o ProxyCommand='sandfarm ssh-proxy %h' sbx_….sandfarm`, ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		id := sshproxy.SandboxOf(args[0])
		if _, err := c.Processes(ctx, id); err != nil { // OpenSSH shows why there is no connection
			return err
		}
		dir, err := sshDir()
		if err != nil {
			return err
		}
		key, err := sshproxy.HostKey(dir)
		if err != nil {
			return err
		}
		return sshproxy.Serve(ctx, pipe{a.In, a.Out}, sshproxy.Config{
			Client: c, Sandbox: id, HostKey: key, Copy: copyBounded, Log: slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
	})
}

// sshDir is where this user's files for SSH are.
func sshDir() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for the host key: %w", err)
	}
	return filepath.Join(dir, "sandfarm", "ssh"), nil
}

// pipe is both directions of the connection to OpenSSH.
type pipe struct {
	io.Reader
	io.Writer
}

// Close ends both directions, if they can be.
func (p pipe) Close() error {
	var errs []error
	for _, end := range []any{p.Reader, p.Writer} {
		if c, ok := end.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

func (a *app) sshConfig() *cobra.Command {
	c := &cobra.Command{
		Use: "ssh-config", Short: "Print the configuration with which OpenSSH reaches sandboxes",
		Long: `Print a part of ~/.ssh/config. With it ssh, scp, sftp, rsync and editors reach the sandbox sbx_… as sbx_….sandfarm. OpenSSH
starts "sandfarm ssh-proxy", which uses the farm and the key that SANDFARM_URL, SANDFARM_API_KEY and SANDFARM_API_KEY_FILE name then;
--url and --key-file are written into it. The first call makes a host key for this machine.`,
		Example: `  sandfarm ssh-config >> ~/.ssh/config
  ssh sbx_….sandfarm
  rsync -a project/ sbx_….sandfarm:project/`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	check := argCount(0, 0, "")
	c.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage(cmd, err)
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if a.key != "" {
			return usage(cmd, errors.New("a key is not written into a configuration, where it would be an argument that others see: use --key-file"))
		}
		text, err := a.sshBlock()
		if err == nil {
			_, err = io.WriteString(a.Out, text)
		}
		return err
	}
	return c
}

// sshBlock is the configuration.
func (a *app) sshBlock() (string, error) {
	dir, err := sshDir()
	if err != nil {
		return "", err
	}
	if _, err := sshproxy.HostKey(dir); err != nil {
		return "", err
	}
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	command := []string{program}
	if at := cmp.Or(a.url, a.Getenv("SANDFARM_URL")); at != "" {
		command = append(command, "--url", at)
	}
	if a.keyFile != "" {
		file, err := filepath.Abs(a.keyFile)
		if err != nil {
			return "", fmt.Errorf("find the key file: %w", err)
		}
		command = append(command, "--key-file", file)
	}
	known := filepath.Join(dir, sshproxy.KnownFile)
	line := strings.ReplaceAll(quote(append(command, "ssh-proxy")), "%", "%%")
	for _, text := range []string{line, known} {
		if strings.ContainsAny(text, "\"\n") {
			return "", fmt.Errorf("OpenSSH's configuration cannot express the path %q", text)
		}
	}
	return fmt.Sprintf(`Host *%s
    ProxyCommand %s %%h
    User sandbox
    UserKnownHostsFile "%s"
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    PubkeyAuthentication no
`, sshproxy.Suffix, line, strings.ReplaceAll(known, "%", "%%")), nil
}
