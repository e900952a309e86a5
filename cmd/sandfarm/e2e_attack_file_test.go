//go:build integration

package main_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
)

// attack is a program of worker/testdata/attacks with the outcome that the comments at its head state.
type attack struct {
	group, name string
	code, twin  string

	timeout      int
	states       []string // of the job
	errors, next []string // names of allowed exceptions, of the attack and of the run after it
	network      string
	allow        []string               // rules of the network allowlist
	secrets      map[string]wire.Secret // without values, which each sandbox has of its own
	runtimes     []string               // those it is for; empty: all
	env          map[string]string
	check        string   // what the neighbour runs beside print(1)
	reads        []string // paths that the farm is asked for afterwards
	packages     bool     // the farm lists the packages afterwards
	autoInstall  bool     // the run after it installs what the workspace lists
	alone        bool     // in a sandbox of its own
	ruins        bool     // no later run of the sandbox has to succeed
	sample       bool     // part of `make test`
	known        string   // why it is not contained yet; empty: it must be
}

// gVisor begins comments that count under gVisor only: "# runsc error: OutOfMemory".
const gVisor = "runsc"

// attackFolder has a folder for each group.
const attackFolder = "../../worker/testdata/attacks"

// readAttacks reads the corpus in the order of its groups and names. It fails for a program that has no twin, no description, or a comment
// that the runner does not know.
func readAttacks(t *testing.T) []attack {
	t.Helper()
	paths, err := filepath.Glob(attackFolder + "/*/*.py")
	if err != nil {
		t.Fatal(err)
	}
	var all []attack
	for _, path := range paths {
		if base, ok := strings.CutSuffix(path, ".ok.py"); ok {
			if !slices.Contains(paths, base+".py") {
				t.Errorf("%s is the twin of no attack", path)
			}
			continue
		}
		all = append(all, readAttack(t, path))
	}
	return all
}

func readAttack(t *testing.T, path string) attack {
	t.Helper()
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	twin, err := os.ReadFile(strings.TrimSuffix(path, ".py") + ".ok.py")
	if err != nil {
		t.Errorf("%s has no harmless twin: %v", path, err)
	}
	a := attack{
		group: filepath.Base(filepath.Dir(path)), name: strings.TrimSuffix(filepath.Base(path), ".py"), code: string(code), twin: string(twin),
		states: []string{"completed"}, timeout: 30, network: "packages", env: map[string]string{},
	}
	if !strings.Contains(a.code, `"""`) {
		t.Errorf("%s does not say what it tries and what stops it", path)
	}
	for row := range strings.Lines(a.code) {
		if row = strings.TrimSpace(row); row != "" && !strings.HasPrefix(row, "#") && !strings.HasPrefix(row, `"`) && strings.HasPrefix(row, "import ") {
			break // the head is over
		}
		key, value, ok := strings.Cut(strings.TrimPrefix(row, "# "), ": ")
		if of, name, found := strings.Cut(key, " "); found && of == gVisor {
			if key = name; !enginetest.GVisor() {
				if err := new(attack).set(key, strings.TrimSpace(value)); err != "" {
					t.Errorf("%s: %s", path, err)
				}
				continue
			}
		}
		if ok && strings.HasPrefix(row, "# ") {
			if err := a.set(key, strings.TrimSpace(value)); err != "" {
				t.Errorf("%s: %s", path, err)
			}
		}
	}
	return a
}

// set applies one comment of the head and returns what is wrong with it.
func (a *attack) set(key, value string) string {
	flags := map[string]*bool{"alone": &a.alone, "ruins": &a.ruins, "sample": &a.sample, "auto_install": &a.autoInstall}
	if flag := flags[key]; flag != nil {
		*flag = value == "true"
		if !*flag {
			return key + " is true or left out"
		}
		return ""
	}
	switch key {
	case "timeout":
		seconds, err := strconv.Atoi(value)
		if err != nil || seconds < 1 || seconds > 120 {
			return "timeout is a number of seconds from 1 to 120, not " + value
		}
		a.timeout = seconds
	case "state":
		a.states = strings.Fields(value)
	case "error":
		a.errors = strings.Fields(value)
	case "next":
		a.next = strings.Fields(value)
	case "network":
		a.network = value
	case "allow":
		a.allow = append(a.allow, value)
	case "secret":
		fields := strings.SplitN(value, " ", 3)
		if len(fields) < 3 {
			return "secret is NAME HOST HEADER, not " + value
		}
		if a.secrets == nil {
			a.secrets = map[string]wire.Secret{}
		}
		a.secrets[fields[0]] = wire.Secret{Host: fields[1], Header: fields[2]}
	case "runtime":
		a.runtimes = strings.Fields(value)
	case "env":
		name, text, _ := strings.Cut(value, "=")
		a.env[name] = text
	case "check":
		a.check = value
	case "reads":
		a.reads = strings.Fields(value)
	case "look":
		a.packages = value == "packages"
	case "known":
		a.known = value
	default:
		return "the runner knows no comment " + strconv.Quote(key)
	}
	return ""
}

// The corpus is complete: 120 attacks or more, in the groups that the README lists.
func TestAttackFiles(t *testing.T) {
	t.Parallel()
	all := readAttacks(t)
	if len(all) < 120 {
		t.Errorf("the corpus has %d attacks", len(all))
	}
	groups := map[string]int{}
	samples := 0
	for _, a := range all {
		groups[a.group]++
		if a.sample {
			samples++
		}
	}
	if samples < 15 {
		t.Errorf("`make test` runs %d attacks", samples)
	}
	readme, err := os.ReadFile(attackFolder + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed, found []string
	for row := range strings.Lines(string(readme)) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(row, "| `"), "` |"); ok && strings.HasPrefix(row, "| `") {
			listed = append(listed, name)
		}
	}
	for name := range groups {
		found = append(found, name)
	}
	slices.Sort(listed)
	slices.Sort(found)
	if diff := cmp.Diff(listed, found); diff != "" {
		t.Errorf("the README lists other groups (-README +folders):\n%s", diff)
	}
}
