package verbs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

func (a *app) keys() *cobra.Command {
	return a.admin(asGroup(&cobra.Command{
		Use: "key", Aliases: []string{"keys"},
		Short: "Make, list and revoke API keys",
		Long: `A key gives its tenant what the scopes say: run (everything with the tenant's own sandboxes, jobs and files), read (see them,
start no work), metrics (/metrics alone), admin (keys, tenants, audit, and the whole fleet). A new or revoked key counts
within a second in every process of the farm. A farm without keys asks for one from the first key on, which is
made on its host (key create --local --tenant NAME --scope admin --scope run). What was made before belongs to the tenant default.`,
		Example: `  sandfarm key create --tenant team-blue --name "build bot" --expires 30d
  sandfarm key ls
  sandfarm key revoke key_…`,
	}, a.keyCreate(), a.keyLs(), a.keyRevoke()))
}

func (a *app) keyCreate() *cobra.Command {
	var r wire.KeyRequest
	var expires, file string
	var forE2B bool
	c := a.verb(&cobra.Command{
		Use: "create --tenant NAME", Short: "Make an API key and print it; it is shown only once",
		Long: `Makes an API key and prints it on standard output, and what it may do on standard error. The farm keeps only a hash of it.`,
		Example: `  sandfarm key create --tenant team-blue
  sandfarm key create --tenant ops --scope admin --save ops.key --local
  sandfarm key create --tenant monitoring --scope metrics --expires 365d
  export E2B_API_KEY=$(sandfarm key create --tenant agents --e2b)`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		if r.Tenant == "" {
			return usagef("--tenant is missing")
		}
		life, err := a.life("expires", expires, "day", 366)
		if err != nil {
			return err
		}
		if life != nil {
			if *life == 0 {
				return usagef("--expires %s is no time; without --expires the key never expires", expires)
			}
			r.ExpiresSeconds = life
		}
		var save *os.File
		if file != "" { // before the key is made, so that it is not lost
			if save, err = os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("no key was made: the file %s of --save exists; name a new one, or remove it", file)
			} else if err != nil {
				return fmt.Errorf("save the key: %w", err)
			}
		}
		first := a.local && r.Tenant != keylessTenant && !hasKeys(ctx, c)
		made, err := c.CreateKey(ctx, r)
		if forE2B {
			made.Secret = wire.E2BKey(made.Secret)
		}
		if save != nil {
			err = saveKey(save, made.Secret, err)
		}
		if err != nil {
			return err
		}
		if a.json {
			return a.print(made)
		}
		where := "The key is shown only now."
		if save != nil {
			where = "The key is in " + file + ", and nowhere else."
		}
		fmt.Fprintf(a.Err, "%s: tenant %s, scopes %s, expires %s. %s\n",
			made.Key.ID, made.Key.Tenant, strings.Join(made.Key.Scopes, ", "), expiry(made.Key, time.Now()), where)
		if first {
			fmt.Fprintf(a.Err, "note: This is the farm's first key. What was made without a key belongs to the tenant %[1]s: sandfarm key create --local --tenant %[1]s makes a key that sees it.\n", keylessTenant)
		}
		if save != nil {
			return nil
		}
		_, err = fmt.Fprintln(a.Out, made.Secret)
		return err
	})
	c.Flags().StringVar(&r.Tenant, "tenant", "", "`NAME` of the tenant that owns what is created with the key")
	c.Flags().StringVar(&r.Name, "name", "", "free `TEXT`, such as who has the key")
	c.Flags().StringSliceVar(&r.Scopes, "scope", nil, "what the key may do: run, read, metrics or admin (may be repeated; default run)")
	c.Flags().StringVar(&expires, "expires", "", "how long the key is valid, such as 12h or 30d (default: for ever)")
	c.Flags().StringVar(&file, "save", "", "write the key to a new `FILE` that only you can read, instead of printing it")
	c.Flags().BoolVar(&forE2B, "e2b", false, "print the key in the form that older SDKs of E2B check; the farm takes both")
	a.complete(c, "scope", func(context.Context, *client.Client) []cobra.Completion {
		return []cobra.Completion{"run", "read", "metrics", "admin"}
	})
	return c
}

// keylessTenant owns what was made while the farm had no keys.
const keylessTenant = "default"

// hasKeys reports whether the farm has keys. If that is not known, it has.
func hasKeys(ctx context.Context, c *client.Client) bool {
	for range c.Keys(ctx, "") {
		return true
	}
	return false
}

// saveKey writes a key that was made to its file; if none was made, it removes the file.
func saveKey(f *os.File, secret string, err error) error {
	if err == nil {
		_, err = f.WriteString(secret + "\n")
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

func expiry(k wire.Key, now time.Time) string {
	if k.ExpiresAt == nil {
		return "never"
	}
	return until(*k.ExpiresAt, now)
}

func (a *app) keyLs() *cobra.Command {
	var tenant string
	var limit int
	c := a.verb(&cobra.Command{
		Use: "ls", Aliases: []string{"list"}, SuggestFor: []string{"key show"}, Short: "List the API keys, newest first",
		Long:              "Lists the API keys: also those that have expired, for a week, and those of the farm's settings. The keys themselves are not shown.",
		Example:           "  sandfarm key ls\n  sandfarm key ls --tenant team-blue --json",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		now := time.Now()
		head := []string{"ID", "TENANT", "NAME", "SCOPES", "CREATED", "EXPIRES", "LAST USE"}
		return listed(a, c.Keys(ctx, tenant), limit, head, func(k wire.Key) []string {
			scopes, made, used := strings.Join(k.Scopes, ", "), "", "never"
			if k.CreatedAt != nil {
				made = since(*k.CreatedAt, now)
			}
			if k.LastUsedAt != nil {
				used = since(*k.LastUsedAt, now)
			}
			if k.Origin == "settings" {
				made, used = "in the settings", ""
			}
			if scopes == "" {
				scopes = "run, metrics, the whole fleet"
			}
			return []string{k.ID, k.Tenant, k.Name, scopes, made, expiry(k, now), used}
		})
	})
	c.Flags().StringVar(&tenant, "tenant", "", "only keys of this tenant")
	c.Flags().IntVar(&limit, "limit", 50, "at most this many; 0 for all")
	return c
}

func (a *app) keyRevoke() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "revoke ID…", Aliases: []string{"rm"}, SuggestFor: []string{"key delete", "tenant rm"}, Short: "Revoke API keys",
		Long: `Revokes API keys. Requests in progress with them end within five seconds; jobs that they started continue. When no key is left
that can make others (scope admin), new ones are made on the farm's host: key create --local --tenant NAME --scope admin --scope run.
A farm without any key is open to everyone on its machine after a restart, unless api.require_keys (SANDFARM_API_REQUIRE_KEYS) is set.`,
		Example:           "  sandfarm key revoke key_…",
		ValidArgsFunction: a.every(a.keyIDs),
	}, argCount(1, -1, "the key's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		before, _ := collect(c.Keys(ctx, "")) // while the caller may ask; without it nothing is said of what is left
		var errs []error
		var revoked []string
		for _, id := range args {
			err := c.RevokeKey(ctx, id)
			if err == nil {
				fmt.Fprintln(a.Err, "revoked "+id)
				revoked = append(revoked, id)
			}
			errs = append(errs, about("revoke key "+id, err))
		}
		if lastAdmin(before, revoked, time.Now()) {
			fmt.Fprintln(a.Err, "note: No key is left that can make others (scope admin). On the farm's host, sandfarm key create --local --tenant NAME --scope admin --scope run makes one. If no key is left at all, everyone on that machine may use the farm after a restart, unless api.require_keys (SANDFARM_API_REQUIRE_KEYS) is set.")
		}
		return errors.Join(errs...)
	})
}

// lastAdmin reports whether the revoked ones of some keys were the last with the scope admin.
func lastAdmin(keys []wire.Key, revoked []string, now time.Time) bool {
	had := false
	for _, k := range keys {
		if !slices.Contains(k.Scopes, "admin") || k.ExpiresAt != nil && !k.ExpiresAt.After(now) {
			continue
		}
		if !slices.Contains(revoked, k.ID) {
			return false
		}
		had = true
	}
	return had
}

func (a *app) keyIDs(ctx context.Context, c *client.Client) []cobra.Completion {
	var found []cobra.Completion
	for k, err := range upTo(c.Keys(ctx, ""), completions) {
		if err != nil {
			break
		}
		found = append(found, cobra.CompletionWithDesc(k.ID, cell(k.Tenant)+" "+cell(k.Name)))
	}
	return found
}
