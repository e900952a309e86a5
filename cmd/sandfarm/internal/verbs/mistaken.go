package verbs

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandfarm/sandfarm/client"
)

// idForm is the form of the ids of sandboxes, jobs and processes: those that are mistaken for each other.
var idForm = regexp.MustCompile(`^(sbx|job|prc)_[0-9a-z]{26}$`)

// mistaken adds to an error which command takes an argument that is the id of a job where this command wants that of a sandbox, or the other
// way round; it does so for a process where this command wants a job. err is a mistake on the command line, or what the farm answered; one that ids do not explain is returned as it is.
func mistaken(cmd *cobra.Command, args []string, err error) error {
	if _, usage := errors.AsType[*UsageError](err); !usage && client.CodeOf(err) != "not_found" {
		return err
	}
	if f := cmd.Flags().Lookup("sandbox"); f != nil && f.Changed {
		args = append([]string{f.Value.String()}, args...)
	}
	if client.CodeOf(err) == "not_found" && cmd.Parent().Name() == "artifact" && cmd.Name() != "ls" && !strings.HasPrefix(args[0], "art_") {
		return errors.Join(err, &hint{text: `"sandfarm artifact ls" lists the IDs of artifacts with their names.`})
	}
	wantsJob := strings.Contains(cmd.CommandPath(), " job ")
	for _, id := range args {
		kind := idForm.FindStringSubmatch(id)
		switch {
		case kind == nil || wantsJob == (kind[1] == "job") || !wantsJob && kind[1] == "prc":
			continue
		case kind[1] == "prc":
			return errors.Join(err, &hint{text: fmt.Sprintf("%q shows this process, and %q ends it.", "sandfarm attach SANDBOX "+id, "sandfarm kill SANDBOX "+id)})
		case wantsJob:
			return errors.Join(err, &hint{text: fmt.Sprintf("%q shows this sandbox, and %q lists its jobs.", "sandfarm sandbox get "+id, "sandfarm job ls --sandbox "+id)})
		}
		if cmd.Name() == "kill" {
			return errors.Join(err, &hint{text: fmt.Sprintf("%q ends this job.", "sandfarm job cancel "+id)})
		}
		return errors.Join(err, &hint{text: fmt.Sprintf("%q follows this job, and %q shows it and names its sandbox.", "sandfarm job events "+id, "sandfarm job get "+id)})
	}
	return err
}

// named adds to an error the ids of the open sandboxes whose name was given in the place of an id, or where ids are found.
func named(cmd *cobra.Command, c *client.Client, args []string, err error) error {
	var names []string
	_, usage := errors.AsType[*UsageError](err)
	switch {
	case usage && (cmd.Name() == "cp" || cmd.Name() == "sync"):
		for _, arg := range args {
			if name, _, ok := strings.Cut(arg, ":"); ok {
				names = append(names, name)
			}
		}
	case client.CodeOf(err) == "not_found":
		names = append(names, args[:min(len(args), 1)]...)
		if f := cmd.Flags().Lookup("sandbox"); f != nil && f.Changed {
			names = append(names, f.Value.String())
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" || strings.HasPrefix(name, "sbx_") })
	if len(names) == 0 {
		return err
	}
	var ids []string
	name := ""
	for box, failed := range c.Sandboxes(cmd.Context(), client.SandboxFilter{Open: true}) {
		if failed != nil {
			return err
		}
		if box.Name == name && name != "" || name == "" && slices.Contains(names, box.Name) {
			name, ids = box.Name, append(ids, box.ID)
		}
	}
	switch n := len(ids); {
	case n == 1:
		text := fmt.Sprintf("%s is the name of %s: use its id.", name, ids[0])
		at := slices.IndexFunc(args, func(arg string) bool { return arg == name || strings.HasPrefix(arg, name+":") })
		if at >= 0 && cmd.Flags().NFlag() == 0 { // values of flags are not printed: they may be secret
			words := slices.Clone(args)
			words[at] = ids[0] + words[at][len(name):]
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				words = slices.Insert(words, dash, "--")
			}
			text = fmt.Sprintf("%s is the name of %s: %s %s", name, ids[0], cmd.CommandPath(), quote(words))
		}
		return errors.Join(err, &hint{text: text})
	case n > maxSuggestions:
		ids = append(ids[:maxSuggestions], fmt.Sprintf("%d more", n-maxSuggestions))
		fallthrough
	case n > 1:
		last := len(ids) - 1
		return errors.Join(err, &hint{text: fmt.Sprintf("%s is the name of %s and %s: use an id.", name, strings.Join(ids[:last], ", "), ids[last])})
	case cmd.Name() == "exec" && !usage:
		return errors.Join(err, &hint{text: `"sandfarm exec ID COMMAND" has the sandbox's ID first; "sandfarm sandbox ls" lists the IDs.`})
	}
	if e, ok := errors.AsType[*client.Error](err); ok && strings.HasPrefix(e.Detail, "There is no sandbox") {
		return errors.Join(err, &hint{text: `"sandfarm sandbox ls" lists the IDs of open sandboxes with their names.`})
	}
	return err
}

// notNamed is the farm's error about a sandbox whose name was given in the place of its id, where lists would be empty; nil for an id, whose sandbox may
// be forgotten, and for "".
func notNamed(ctx context.Context, c *client.Client, id string) error {
	if id == "" || strings.HasPrefix(id, "sbx_") {
		return nil
	}
	_, err := c.Sandbox(ctx, id)
	return err
}

// maxSuggestions bounds the commands that an error suggests: get and ls are the names of many.
const maxSuggestions = 3

// suggestions are the commands that somebody may mean by an unknown name below c, the first of args, as they are called below c: those that have
// it in SuggestFor, with the name of c before it (as of "files upload") wherever they are, else those deeper down that have the name, else those here
// whose names are close. The id of a sandbox or a job as the
// next argument narrows them; in the place of the name it means the command that shows it, or the next argument with the id behind it.
func suggestions(c *cobra.Command, args []string) []string {
	name := args[0]
	if flag := map[string]string{"version": "--version", "login": "--key"}[name]; flag != "" && !c.HasParent() {
		return []string{flag}
	}
	if c.Name() == "packages" && slices.Contains([]string{"uninstall", "remove", "rm", "delete"}, name) {
		return []string{"sandfarm exec ID 'pip uninstall -y NAME'"}
	}
	if idForm.MatchString(name) {
		if len(args) > 1 && !idForm.MatchString(args[1]) { // the command behind the id
			found := suggestions(c, []string{args[1], name})
			for i := range found {
				found[i] += " " + name
			}
			return found
		}
		for _, sub := range c.Commands() {
			if (sub.Name() == "get" || sub.Name() == "ls") && sub.Args(sub, args) == nil {
				return []string{sub.Name() + " " + name}
			}
		}
	}
	var meant, named []string
	within := strings.TrimPrefix(c.CommandPath()+" "+name, c.Root().Name()+" ")
	var walk func(*cobra.Command)
	walk = func(group *cobra.Command) {
		for _, sub := range group.Commands() {
			if !sub.IsAvailableCommand() {
				continue
			}
			path, below := strings.CutPrefix(sub.CommandPath(), c.CommandPath()+" ")
			if slices.Contains(sub.SuggestFor, within) || below && slices.Contains(sub.SuggestFor, name) {
				meant = append(meant, path)
			}
			if below && (sub.Name() == name || sub.HasAlias(name)) {
				named = append(named, path)
			}
			walk(sub)
		}
	}
	walk(c.Root())
	found := meant
	if len(found) == 0 {
		found = named
	}
	if len(found) == 0 {
		found = near(c, name)
	}
	if len(args) > 1 {
		of := map[string]string{"sbx": "sandbox ", "job": "job "}
		kind, _, _ := strings.Cut(args[1], "_")
		if narrow := slices.DeleteFunc(slices.Clone(found), func(one string) bool { return of[kind] == "" || !strings.HasPrefix(one, of[kind]) }); len(narrow) > 0 {
			found = narrow
		}
	}
	return found[:min(len(found), maxSuggestions)]
}

// nearLetters is the least length of a name that is close with two other letters; of shorter ones those are most of it.
const nearLetters = 5

// near is the command here whose name is close, if any: rather one that begins with it. A name is close with one other letter, with two if it is
// long, and with the same letters in another order.
func near(c *cobra.Command, name string) []string {
	c.SuggestionsMinimumDistance = 1
	found := c.SuggestionsFor(name)
	if len(found) == 0 {
		c.SuggestionsMinimumDistance = 2
		letters := slices.Sorted(slices.Values([]byte(name)))
		found = slices.DeleteFunc(c.SuggestionsFor(name), func(one string) bool {
			return min(len(one), len(name)) < nearLetters && !slices.Equal(letters, slices.Sorted(slices.Values([]byte(one))))
		})
	}
	if at := slices.IndexFunc(found, func(one string) bool { return strings.HasPrefix(one, name) }); at > 0 {
		found = found[at:]
	}
	return found[:min(len(found), 1)]
}

// flagError is the error of a flag in words: what its value has to be, the flag whose name is close, or what takes the place of one.
func flagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if f := invalid.GetFlag(); f.Value.Type() == "int" || f.Value.Type() == "float64" {
			return fmt.Errorf("--%s %q is not a number", f.Name, invalid.GetValue())
		}
		return err
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	switch {
	case !ok:
		return err
	case cmd.Name() == "exec" && len(cmd.Flags().Args()) > 1: // behind the id and a word of the command
		return fmt.Errorf("%w; put -- before the command: sandfarm exec %s -- %s …", err, cmd.Flags().Arg(0), cmd.Flags().Arg(1))
	case cmd.Name() == "exec" && unknown.GetSpecifiedName() == "d":
		return fmt.Errorf("%w; did you mean \"--background\"?", err)
	case cmd.Name() == "run" && (unknown.GetSpecifiedName() == "c" || unknown.GetSpecifiedName() == "code"):
		return fmt.Errorf("%w; %s", err, codeComesFrom)
	case cmd.Name() == "sync" && unknown.GetSpecifiedName() == "watch":
		return fmt.Errorf("%w; sync watches both sides until Ctrl-C without it, and --once copies once", err)
	case cmd.Name() == "rm" && cmd.Parent().Name() == "files" && slices.Contains([]string{"r", "R", "f", "recursive", "force"}, unknown.GetSpecifiedName()):
		return fmt.Errorf("%w; directories are removed without it", err)
	case unknown.GetSpecifiedShortnames() != "":
		return err
	}
	var names cobra.Command // cobra compares names of commands only
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}, Hidden: f.Hidden})
	})
	if meant := near(&names, unknown.GetSpecifiedName()); len(meant) > 0 {
		return fmt.Errorf("%w; did you mean \"--%s\"?", err, meant[0])
	}
	return err
}
