//go:build integration

package main_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
	testbed.Must(t, err)
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
	testbed.Must(t, err)
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
				testbed.Diff(t, path, "", new(attack).set(key, strings.TrimSpace(value)))
				continue
			}
		}
		if ok && strings.HasPrefix(row, "# ") {
			testbed.Diff(t, path, "", a.set(key, strings.TrimSpace(value)))
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
	testbed.Must(t, err)
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
	testbed.Diff(t, "the README lists other groups", listed, found)
}

// head prints the head of the table.
func (r *attackRun) head(t *testing.T, runtime string) {
	t.Helper()
	r.print(t, fmt.Sprintf("Attacks under %s. The times are a neighbour's print(1), 95th percentile: before the attack, and beside it.\n\n%-40s %-14s %8s %10s %11s %6s\n",
		runtime, "attack", "result", "seconds", "quiet ms", "beside ms", "ratio"))
}

// done keeps a row and prints it with its problems.
func (r *attackRun) done(t *testing.T, row attackRow) {
	t.Helper()
	r.rows = append(r.rows, row)
	name := row.group + "/" + row.name
	if r.hibernates {
		name += ", hibernated"
	}
	text := line(name, row.result(), row.took, row.quiet, row.beside)
	for _, problem := range row.problems {
		text += "    " + strings.ReplaceAll(problem, "\n", "\n    ") + "\n"
	}
	r.print(t, text)
}

// result is one word for the outcome.
func (row attackRow) result() string {
	switch {
	case len(row.problems) == 0:
		return "contained"
	case row.known != "":
		return "known"
	default:
		return "NOT CONTAINED"
	}
}

// report prints what became of all attacks.
func (r *attackRun) report(t *testing.T) {
	t.Helper()
	var quiet, beside []time.Duration
	count, known := map[string]int{}, ""
	for _, row := range r.rows {
		quiet, beside = append(quiet, row.quiet...), append(beside, row.beside...)
		count[row.result()]++
		if row.known != "" {
			known += fmt.Sprintf("  %s/%s: %s\n", row.group, row.name, row.known)
		}
	}
	text := line("all", "", 0, quiet, beside) + fmt.Sprintf("\n%d of %d attacks contained", count["contained"], len(r.rows))
	if known != "" {
		text += fmt.Sprintf(", %d known not to be:\n%s", count["known"], known)
	}
	r.print(t, text+"\n")
}

// print logs a text, or appends it to the file that SANDFARM_TEST_REPORT names, so that a run that is ended leaves what it found.
func (r *attackRun) print(t *testing.T, text string) {
	t.Helper()
	name := os.Getenv("SANDFARM_TEST_REPORT")
	if name == "" {
		t.Log(text)
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteString(text); err != nil {
		t.Error(err)
	}
}

// line prints one row. Ratios of single attacks have few samples: that of all is the one to look at.
func line(name, result string, took time.Duration, quiet, beside []time.Duration) string {
	before, during := percentile95(quiet), percentile95(beside)
	ratio := 0.0
	if before > 0 {
		ratio = during.Seconds() / before.Seconds()
	}
	return fmt.Sprintf("%-40s %-14s %8.1f %10.1f %11.1f %6.1f\n", name, result, took.Seconds(), ms(before), ms(during), ratio)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile95 is the smallest time that 95 of 100 do not exceed, 0 if there is none.
func percentile95(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)*95+99)/100-1]
}

// env is the environment of an attack's execution: what its head states, and where the site and the victim are.
func (n *internet) env(a attack) map[string]string {
	env := maps.Clone(a.env)
	if a.network == string(farm.NetworkAllowlist) {
		env["SITE"], env["VICTIM"] = n.site, n.victim
	}
	return env
}

// begin forgets what was asked before an attack.
func (n *internet) begin() {
	n.questions()
	n.visited()
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.turns)
}

// check says what an attack reached that its rules do not allow: the victim, the DNS, the site by another name, or a host with a secret that is
// not its own.
func (n *internet) check(a attack, values []string, problem func(string, ...any)) {
	if visits := n.visits.Swap(0); visits > 0 {
		problem("the victim got %d connections", visits)
	}
	var rules []farm.HostRule
	for _, text := range a.allow {
		rule, err := farm.ParseHostRule(text)
		if err != nil {
			problem("%v", err)
			continue
		}
		rules = append(rules, rule)
	}
	allowed := func(host string, port int) bool {
		return slices.ContainsFunc(rules, func(r farm.HostRule) bool { return r.Allows(host, port) })
	}
	for _, name := range n.questions() {
		if !allowed(name, 80) && !allowed(name, 443) {
			problem("the DNS was asked for %q, which no rule allows", name)
		}
	}
	for _, v := range n.visited() {
		if port := map[bool]int{false: 80, true: 443}[v.tls]; !allowed(v.host, port) {
			problem("the site got a request for %q, which no rule allows: %s %.300s", v.host, v.method, v.path)
		}
		for _, value := range values {
			if strings.Contains(fmt.Sprint(v.header, v.path, v.body), value) && !a.hasSecretOf(v.host) {
				problem("%s %s of %s has the secret of another host", v.method, v.path, v.host)
			}
		}
	}
}

func (a *attack) hasSecretOf(host string) bool {
	for _, one := range a.secrets {
		if one.Host == host {
			return true
		}
	}
	return false
}

// leaks says whether a text has the value of a secret.
func (r *attackRun) leaks(place, text string, problem func(string, ...any)) {
	for _, value := range r.values {
		for _, form := range forms(value) {
			if strings.Contains(text, form) {
				problem("%s has the value of a secret", place)
			}
		}
	}
}
