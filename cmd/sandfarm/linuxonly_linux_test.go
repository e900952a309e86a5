package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// withClient is the program with only the client's verbs.
func withClient(out *testbed.Log) (*cobra.Command, verbs.Streams) {
	streams := verbs.Streams{In: strings.NewReader(""), Out: out, Err: out, Getenv: func(string) string { return "" }}
	root := &cobra.Command{Use: "sandfarm"}
	verbs.Add(root, streams)
	return root, streams
}

// paths lists the commands of a program with their short help, without those below the verbs of package server.
func paths(root *cobra.Command) []string {
	var all []string
	for _, c := range root.Commands() {
		all = append(all, c.CommandPath()+": "+c.Short)
		if c.Name() == "image" {
			all = append(all, paths(c)...)
		}
	}
	slices.Sort(all)
	return all
}

func TestOtherSystemsNameEveryServerVerb(t *testing.T) {
	t.Parallel()
	linux, streams := withClient(&testbed.Log{})
	farmd.Add(linux, streams, nil, "test")
	other, _ := withClient(&testbed.Log{})
	addLinuxOnlyVerbs(other)
	if got, want := paths(other), paths(linux); !slices.Equal(got, want) {
		t.Errorf("verbs and their help on other systems:\n%s\non Linux:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestServerVerbsOnOtherSystemsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"up", "--config", "a.toml", "--down"}, {"image", "build", "python"}, {"config", "check"}} {
		var out testbed.Log
		root, _ := withClient(&out)
		addLinuxOnlyVerbs(root)
		root.SetArgs(args)
		code := verbs.Execute(t.Context(), root, &out)
		text := out.String()
		if code != verbs.ExitError || strings.Count(text, "\n") != 1 || !strings.Contains(text, "needs Linux") || !strings.Contains(text, "SANDFARM_URL") {
			t.Errorf("%q: exit code %d, %q; want one line that says what to do", args, code, text)
		}
	}
}

// Whoever reads the help looks for what they want to do: cobra lists a verb without a group below all others.
func TestHelpGroupsEveryVerb(t *testing.T) {
	t.Parallel()
	_, streams := withClient(&testbed.Log{})
	for _, c := range newRoot(streams).Commands() {
		if c.GroupID == "" {
			t.Errorf("%s is in no group", c.Name())
		}
	}
}

func TestNamesOfOtherProgramsGetAServerVerb(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"start": `"up"`, "serve": `"up"`, "info": `"doctor" or "top"`, "webhook": `"config callback-secret"`, "config show": `"check"`,
	} {
		stderr := &testbed.Log{}
		code := run(t.Context(), strings.Fields(text), verbs.Streams{In: strings.NewReader(""), Out: stderr, Err: stderr, Getenv: func(string) string { return "" }})
		if code != verbs.ExitUsage || !strings.Contains(stderr.String(), "did you mean "+want+"? See ") {
			t.Errorf("%s: exit code %d: %s, want %s offered", text, code, stderr.String(), want)
		}
	}
}
