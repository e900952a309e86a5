package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

func (a *app) files() *cobra.Command {
	return asGroup(&cobra.Command{
		Use: "files", Aliases: []string{"file"},
		Short: "List, read and write the files of a sandbox",
		Long:  `Paths in a sandbox are relative to its workspace, /workspace; "sandfarm cp" copies files of all other directories, too.`,
		Example: `  sandfarm files put sbx_… data.csv in/data.csv
  sandfarm files ls sbx_… in
  sandfarm files get sbx_… out/report.pdf`,
	}, a.filesLs("ls ID [PATH]"), a.filesCat(), a.filesGet(), a.filesPut(), a.filesRm(), a.filesMv())
}

// sandboxFiles is "files ls" as a subcommand of sandbox.
func (a *app) sandboxFiles() *cobra.Command {
	c := a.filesLs("files ID [PATH]")
	c.Aliases = nil
	c.Example = "  sandfarm sandbox files sbx_… -r"
	return c
}

func (a *app) filesLs(use string) *cobra.Command {
	var recursive bool
	c := a.verb(&cobra.Command{
		Use: use, Aliases: []string{"list"}, Short: "List the files of a sandbox",
		Example: `  sandfarm files ls sbx_…
  sandfarm files ls sbx_… results -r`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 2, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		dir := ""
		if len(args) == 2 {
			dir = args[1]
		}
		entries, err := c.Files(args[0]).List(ctx, dir, recursive)
		if err != nil || a.json {
			if entries == nil {
				entries = []wire.FileEntry{}
			}
			return a.list(entries, err)
		}
		slices.SortFunc(entries, func(x, y wire.FileEntry) int { return cmp.Compare(x.Path, y.Path) })
		rows := make([][]string, len(entries))
		for i, e := range entries {
			name, much := e.Path, size(e.Size)
			if e.Type == "dir" {
				name, much = name+"/", "-"
			}
			rows[i] = []string{e.Mode, much, e.ModifiedAt.Local().Format(time.DateTime), name}
		}
		return table(a.Out, []string{"MODE", "SIZE", "MODIFIED", "PATH"}, rows)
	})
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "list the whole tree")
	return c
}

func (a *app) filesCat() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "cat ID PATH…", SuggestFor: []string{"read"}, Short: "Print files of a sandbox", Example: "  sandfarm files cat sbx_… log.txt | tail",
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, -1, "the sandbox's ID or the PATH"), func(ctx context.Context, c *client.Client, args []string) error {
		for _, name := range args[1:] {
			if err := a.copyOut(c, "-", fileName{}, func() (io.ReadCloser, error) { return c.Files(args[0]).Read(ctx, name, 0) }); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) filesGet() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "get ID PATH [DEST|-]", SuggestFor: []string{"files download"}, Short: "Copy a file out of a sandbox",
		Long: `Copy a file out of a sandbox, to DEST (a file or an existing directory), to stdout (-), or into the current directory. An
existing file with other content is not overwritten: the new one is called name-1.`,
		Example: `  sandfarm files get sbx_… results/plot.png
  sandfarm files get sbx_… log.txt - | tail`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, 3, "the sandbox's ID or the PATH"), func(ctx context.Context, c *client.Client, args []string) error {
		open := func() (io.ReadCloser, error) { return c.Files(args[0]).Read(ctx, args[1], 0) }
		dest := ""
		if len(args) == 3 {
			dest = args[2]
		}
		return a.copyOut(c, dest, fileName{text: path.Base(args[1])}, open)
	})
}

// fileName is the name of a file that is saved, if the user gives it no other.
type fileName struct {
	text    string
	foreign bool // the sandbox has chosen it, not the user
}

// copyOut copies content to stdout (-), into a directory under its own name, or to a file.
func (a *app) copyOut(c *client.Client, dest string, own fileName, open func() (io.ReadCloser, error)) error {
	if dest == "-" {
		content, err := open()
		if err != nil {
			return err
		}
		defer content.Close()
		_, err = io.Copy(a.Out, content)
		return err
	}
	dir, name := ".", own.text
	if dest != "" {
		if info, err := os.Stat(dest); (err == nil && info.IsDir()) || os.IsPathSeparator(dest[len(dest)-1]) {
			dir = dest
		} else {
			own.foreign = false
			dir, name = filepath.Split(dest)
			dir = cmp.Or(dir, ".")
		}
	}
	local, err := localName(name, runtime.GOOS)
	if err != nil {
		return err
	}
	s, err := a.newSaver(c, dir)
	if err != nil {
		return err
	}
	defer s.close()
	if reason := s.autoload.Reason(s.root, local); reason != "" && own.foreign {
		return fmt.Errorf("not saved: %s (%s). To save it, give it a name: the argument after the ID", printable(local), reason)
	}
	return s.save(local, "", open)
}

func (a *app) filesPut() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "put ID SRC|- [PATH]", SuggestFor: []string{"files upload", "files write"}, Short: "Copy a file or a directory into a sandbox",
		Long: `Copy a file, stdin (-), or a directory with its contents into a sandbox, to PATH or under its own name. A PATH that ends
in a slash is a directory. Links in a directory are neither followed nor copied.`,
		Example: `  sandfarm files put sbx_… data.csv
  sandfarm files put sbx_… data.csv in/
  sandfarm files put sbx_… ./project
  tar c … | sandfarm files put sbx_… - project.tar`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.first(a.sandboxIDs)(cmd, args, text)
		},
	}, argCount(2, 3, "the sandbox's ID or the file"), func(ctx context.Context, c *client.Client, args []string) error {
		to := ""
		if len(args) == 3 {
			to = args[2]
		}
		return a.put(ctx, c.Files(args[0]), args[1], to)
	})
}

func (a *app) put(ctx context.Context, files *client.Files, from, to string) error {
	if from == "-" {
		if to == "" || strings.HasSuffix(to, "/") {
			return usagef("stdin has no name: give the PATH to store it under")
		}
		progress := a.progress()
		if err := files.Write(ctx, to, progress.reader(a.In)); err != nil {
			return err
		}
		fmt.Fprintf(a.Err, "put %s (%s)\n", printable(to), size(progress.bytes))
		return nil
	}
	info, err := os.Stat(from)
	if err != nil {
		return unreadable(from, err)
	}
	if to == "" || strings.HasSuffix(to, "/") {
		whole, err := filepath.Abs(from)
		if err != nil {
			return fmt.Errorf("read %s: %w", from, err)
		}
		to = path.Join(to, filepath.Base(whole))
	}
	if info.IsDir() {
		progress := a.progress()
		if err := putTree(ctx, files, from, to, progress); err != nil {
			return err
		}
		fmt.Fprintf(a.Err, "put %s/ (%s)\n", printable(to), size(progress.bytes))
		return nil
	}
	if err := putFile(ctx, files, from, to); err != nil {
		return err
	}
	fmt.Fprintf(a.Err, "put %s (%s)\n", printable(to), size(info.Size()))
	return nil
}

func (a *app) filesRm() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "rm ID PATH…", SuggestFor: []string{"rm", "delete"}, Short: "Remove files and directories of a sandbox", Example: "  sandfarm files rm sbx_… old.csv tmp",
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, -1, "the sandbox's ID or the PATH"), func(ctx context.Context, c *client.Client, args []string) error {
		var errs []error
		for _, name := range args[1:] {
			what := printable(name)
			if e, err := c.FS(args[0]).Stat(ctx, name); err == nil && e.Type == "dir" {
				what = "the directory " + what + " with all that was in it"
			}
			err := c.Files(args[0]).Delete(ctx, name)
			if err == nil {
				fmt.Fprintf(a.Err, "removed %s\n", what)
			}
			errs = append(errs, about("remove "+name, err))
		}
		return errors.Join(errs...)
	})
}

func (a *app) filesMv() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "mv ID FROM TO", Short: "Rename a file of a sandbox", Example: "  sandfarm files mv sbx_… draft.txt final.txt",
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(3, 3, "the sandbox's ID, FROM or TO"), func(ctx context.Context, c *client.Client, args []string) error {
		if err := c.Files(args[0]).Move(ctx, args[1], args[2]); err != nil {
			return err
		}
		fmt.Fprintln(a.Err, printable("renamed "+args[1]+" to "+args[2]))
		return nil
	})
}
