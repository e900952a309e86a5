package farm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The transition table, written a second time: every pair of states is checked against it.
func TestJobMoves(t *testing.T) {
	t.Parallel()
	allowed := map[farm.JobState]string{
		"queued": "running completed canceled failed lost", "running": "queued running completed failed timed_out canceled lost",
		"completed": "", "failed": "", "timed_out": "", "canceled": "", "lost": "",
	}
	if len(farm.JobStates()) != len(allowed) {
		t.Fatalf("there are %d states", len(farm.JobStates()))
	}
	for _, from := range farm.JobStates() {
		moves := strings.Fields(allowed[from])
		for _, to := range farm.JobStates() {
			want := slices.Contains(moves, string(to))
			if from.To(to) != want || slices.Contains(to.From(), from) != want {
				t.Errorf("%s → %s is %v, and backwards %v; want %v", from, to, from.To(to), slices.Contains(to.From(), from), want)
			}
		}
		if from.Final() != (len(moves) == 0) || !from.Valid() || from.To("") || from.To("ready") {
			t.Errorf("%s: final %v, valid %v", from, from.Final(), from.Valid())
		}
	}
	for _, no := range []farm.JobState{"", "Queued", "done"} {
		if no.Valid() || no.Final() || no.To(farm.JobRunning) || len(no.From()) > 0 {
			t.Errorf("%q is accepted as a state", no)
		}
	}
}

func TestSandboxMoves(t *testing.T) {
	t.Parallel()
	allowed := map[farm.SandboxState]string{
		"queued": "starting closing closed failed lost", "starting": "queued starting ready closing failed lost",
		"ready": "busy hibernated closing failed lost", "busy": "ready closing failed lost", "hibernated": "ready busy closing failed lost",
		"closing": "closed expired lost", "closed": "", "expired": "", "failed": "", "lost": "",
	}
	accepts := "queued starting ready busy hibernated"
	if len(farm.SandboxStates()) != len(allowed) {
		t.Fatalf("there are %d states", len(farm.SandboxStates()))
	}
	for _, from := range farm.SandboxStates() {
		moves := strings.Fields(allowed[from])
		for _, to := range farm.SandboxStates() {
			testbed.Diff(t, fmt.Sprintf("%s → %s", from, to), slices.Contains(moves, string(to)), from.To(to))
		}
		if from.Final() != (len(moves) == 0) || !from.Valid() || from.To("") {
			t.Errorf("%s: final %v, valid %v", from, from.Final(), from.Valid())
		}
		testbed.Diff(t, fmt.Sprintf("%s accepts work", from), slices.Contains(strings.Fields(accepts), string(from)), from.Accepts())
		if !from.Final() && !reaches(from, map[farm.SandboxState]bool{}) {
			t.Errorf("%s has no path to a final state", from)
		}
	}
	for _, no := range []farm.SandboxState{"", "running"} {
		if no.Valid() || no.Final() || no.Accepts() || no.To(farm.SandboxReady) {
			t.Errorf("%q is accepted as a state", no)
		}
	}
}

func reaches(s farm.SandboxState, seen map[farm.SandboxState]bool) bool {
	if s.Final() {
		return true
	}
	seen[s] = true
	return slices.ContainsFunc(farm.SandboxStates(), func(to farm.SandboxState) bool { return s.To(to) && !seen[to] && reaches(to, seen) })
}

func TestIDs(t *testing.T) {
	t.Parallel()
	prefixes := []string{farm.SandboxPrefix, farm.JobPrefix, farm.WorkerPrefix, farm.NodePrefix, farm.RequestPrefix}
	seen := map[string]bool{}
	for range 1000 {
		for _, prefix := range prefixes {
			id := farm.NewID(prefix)
			if seen[id] || !farm.ValidID(prefix, id) || len(id) != len(prefix)+26 {
				t.Fatalf("id %q", id)
			}
			seen[id] = true
			for _, other := range prefixes {
				if other != prefix && farm.ValidID(other, id) {
					t.Fatalf("%q is accepted as an id of %q", id, other)
				}
			}
		}
	}
	id := farm.NewID(farm.JobPrefix)
	for _, no := range []string{"", farm.JobPrefix, id[4:], id + "0", id[:len(id)-1], strings.ToUpper(id), id[:len(id)-1] + "u", id[:len(id)-1] + "\n", id[:10] + "/../" + id[14:], " " + id} {
		if farm.ValidID(farm.JobPrefix, no) {
			t.Errorf("%q is accepted as an id", no)
		}
	}
}

func TestDerivedIDs(t *testing.T) {
	t.Parallel()
	a := farm.DerivedID(farm.KeyPrefix, "job_1", "a/b")
	if a != farm.DerivedID(farm.KeyPrefix, "job_1", "a/b") || !farm.ValidID(farm.KeyPrefix, a) {
		t.Errorf("derived id %q", a)
	}
	if a == farm.DerivedID(farm.KeyPrefix, "job_1", "a", "b") || a == farm.DerivedID(farm.KeyPrefix, "job_1a", "/b") || a == farm.DerivedID(farm.KeyPrefix, "job_2", "a/b") {
		t.Error("different parts give the same id")
	}
}

func TestArtifactIDs(t *testing.T) {
	t.Parallel()
	job, other := farm.NewID(farm.JobPrefix), farm.NewID(farm.JobPrefix)
	a := farm.ArtifactID(job, "a/b")
	if a != farm.ArtifactID(job, "a/b") || !farm.ValidID(farm.ArtifactPrefix, a) || farm.ArtifactJob(a) != job {
		t.Errorf("id %q of job %q leads to %q", a, job, farm.ArtifactJob(a))
	}
	if a == farm.ArtifactID(job, "a/c") || a == farm.ArtifactID(other, "a/b") {
		t.Error("different paths or jobs give the same id")
	}
	for _, no := range []string{
		"", farm.ArtifactPrefix, job, a[4:], a + "0", a[:len(a)-1], strings.ToUpper(a), a[:len(a)-1] + "u", a[:len(a)-1] + "\n", a[:10] + "/../" + a[14:],
		" " + a, a[:29] + "1" + a[30:], farm.NewID(farm.ArtifactPrefix),
	} {
		if farm.ValidID(farm.ArtifactPrefix, no) || farm.ArtifactJob(no) != "" {
			t.Errorf("%q is accepted as the id of an artifact, of job %q", no, farm.ArtifactJob(no))
		}
	}
}

func TestCleanPath(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("n", farm.MaxNameBytes)
	for in, want := range map[string]string{
		"": ".", ".": ".", "./": ".", "/workspace": ".", "/workspace/": ".", "/workspace//a": "a", "a": "a", "a/b": "a/b", "a//b/": "a/b", "./a/./b": "a/b",
		"/workspace/a/b": "a/b", "...": "...", "a..b": "a..b", "..a": "..a", "a b": "a b", "ä/世": "ä/世", "-rf": "-rf", "a\nb": "a\nb", name: name, "workspace/a": "workspace/a",
	} {
		if got, err := farm.CleanPath(in); err != nil || got != want {
			t.Errorf("CleanPath(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{
		"..", "../a", "a/..", "a/../b", "a/../../b", "/", "//", "/etc/passwd", "/workspaces/a", "/workspace/../etc", "/workspace/..", "//workspace/a", "/./workspace",
		"a\x00b", "\xff", "a/\xfe", name + "n", "a/" + name + "n", strings.Repeat("a/", farm.MaxPathBytes), "/Workspace/a",
	} {
		if got, err := farm.CleanPath(in); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("CleanPath(%.40q) = %q, %v; want it refused", in, got, err)
		}
	}
	for _, in := range []string{"", ".", "/workspace", "/workspace/", "./."} {
		if got, err := farm.CleanFilePath(in); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("CleanFilePath(%q) = %q, %v; want it refused", in, got, err)
		}
	}
	if got, err := farm.CleanFilePath("/workspace/a"); got != "a" || err != nil {
		t.Errorf("CleanFilePath = %q, %v", got, err)
	}
}

func FuzzCleanPath(f *testing.F) {
	for _, s := range []string{"", "/", "..", "a/../b", "/workspace/a", "/workspace/../x", "\xff", "a\x00", "/workspace//..//x", strings.Repeat("x/", 2000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := farm.CleanPath(in)
		if err != nil {
			if farm.CodeOf(err) != farm.CodeInvalid || !utf8.ValidString(err.Error()) || len(err.Error()) > 400 {
				t.Fatalf("CleanPath(%q) gives the error %q", in, err)
			}
			return
		}
		if got == "" || path.IsAbs(got) || path.Clean(got) != got || strings.HasPrefix(got, "../") || got == ".." || strings.ContainsRune(got, 0) || len(got) > farm.MaxPathBytes {
			t.Fatalf("CleanPath(%q) = %q", in, got)
		}
		if abs := path.Join(farm.Workspace, got); abs != farm.Workspace && !strings.HasPrefix(abs, farm.Workspace+"/") {
			t.Fatalf("CleanPath(%q) = %q leads to %q", in, got, abs)
		}
		if again, err := farm.CleanPath(got); again != got || err != nil {
			t.Fatalf("CleanPath(%q) = %q, and of that %q, %v", in, got, again, err)
		}
	})
}

// The bounds must fit each other, and each default must lie between its bounds.
func TestDefaultLimits(t *testing.T) {
	t.Parallel()
	l := farm.DefaultLimits()
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if v.Field(i).IsZero() && name != "IdleDefaultSeconds" {
			t.Errorf("%s has no default", name)
		}
		if v.Field(i).CanInt() && v.Field(i).Int() < 0 {
			t.Errorf("%s is negative", name)
		}
	}
	for name, b := range map[string]farm.IntLimits{
		"memory": l.Memory, "pids": l.PIDs, "disk": l.Disk, "ttl": {Default: l.TTLDefaultSeconds, Min: l.TTLMinSeconds, Max: l.TTLMaxSeconds},
		"timeout": {Default: l.TimeoutDefaultSeconds, Min: 1, Max: l.TimeoutMaxSeconds},
	} {
		if b.Min < 1 || b.Min > b.Default || b.Default > b.Max {
			t.Errorf("%s: %+v", name, b)
		}
	}
	if l.CPUs.Min <= 0 || l.CPUs.Min > l.CPUs.Default || l.CPUs.Default > l.CPUs.Max {
		t.Errorf("cpus: %+v", l.CPUs)
	}
	if l.MaxCodeBytes > l.MaxBodyBytes || l.MaxInputBytes > l.MaxBodyBytes {
		t.Error("the maximum sizes do not fit into a request body")
	}
	testbed.Diff(t, "", l, farm.DefaultLimits())
	if err := l.Validate(); err != nil {
		t.Error(err)
	}
	l.Memory.Min, l.CPUs.Default, l.TTLMaxSeconds, l.IdleDefaultSeconds = 1<<20, 1000, 1, 1
	err := l.Validate()
	for _, want := range []string{"limits.memory_mb", "limits.cpus", "limits.ttl", "limits.idle_default_seconds"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "pids") {
		t.Errorf("%v names a valid field", err)
	}
}

// Every setting has a doc text: `sandfarm config example` prints it.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	var check func(reflect.Type, string)
	check = func(typ reflect.Type, where string) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Type.Kind() == reflect.Struct {
				check(f.Type, where+f.Name+".")
			}
			if f.Tag.Get("toml") == "-" {
				continue // no setting
			}
			if doc := f.Tag.Get("doc"); doc == "" || !strings.HasSuffix(doc, ".") {
				t.Errorf("%s%s: doc is %q", where, f.Name, doc)
			}
			if !strings.Contains(where, ".") && f.Tag.Get("toml") == "" {
				t.Errorf("%s has no toml tag", f.Name)
			}
		}
	}
	check(reflect.TypeFor[farm.Limits](), "")
}

func TestErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("dial tcp 10.0.0.7: refused")
	wrapped := fmt.Errorf("read job: %w", farm.Wrap(cause, farm.CodeUnavailable, "Redis does not answer"))
	if farm.CodeOf(wrapped) != farm.CodeUnavailable || farm.MessageOf(wrapped) != "Redis does not answer" || !errors.Is(wrapped, cause) {
		t.Errorf("code %q, message %q", farm.CodeOf(wrapped), farm.MessageOf(wrapped))
	}
	if !strings.Contains(wrapped.Error(), "10.0.0.7") {
		t.Errorf("the error does not contain the cause: %v", wrapped)
	}
	for _, err := range []error{cause, farm.Errorf(farm.CodeInternal, "secret %d", 1), fmt.Errorf("x: %w", cause)} {
		if farm.CodeOf(err) != farm.CodeInternal || strings.Contains(farm.MessageOf(err), "secret") || strings.Contains(farm.MessageOf(err), "10.0.0.7") {
			t.Errorf("%v: code %q, message %q", err, farm.CodeOf(err), farm.MessageOf(err))
		}
	}
	if farm.CodeOf(nil) != "" {
		t.Errorf("nil has code %q", farm.CodeOf(nil))
	}
	for code, err := range map[farm.Code]error{farm.CodeInvalid: farm.Invalidf("a %d", 1), farm.CodeNotFound: farm.NotFoundf("a 1"), farm.CodeConflict: farm.Conflictf("a 1")} {
		if farm.CodeOf(errors.Join(errors.New("x"), err)) != code || farm.MessageOf(err) != "a 1" {
			t.Errorf("%v has code %q", err, farm.CodeOf(err))
		}
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	base := time.Unix(1_000_000, 0)
	for _, s := range []struct {
		name  string
		idle  int
		used  time.Duration
		state farm.SandboxState
		want  time.Duration
	}{
		{"no idle limit", 0, 0, farm.SandboxReady, time.Hour},
		{"idle first", 60, 0, farm.SandboxReady, time.Minute},
		{"idle later than the end", 60, 3590 * time.Second, farm.SandboxReady, time.Hour},
		{"busy", 60, 0, farm.SandboxBusy, time.Hour},
		{"used since", 60, 10 * time.Minute, farm.SandboxReady, 11 * time.Minute},
		{"starting", 60, 0, farm.SandboxStarting, time.Minute},
	} {
		box := farm.Sandbox{State: s.state, LastUsedAt: base.Add(s.used), ExpiresAt: base.Add(time.Hour), Spec: farm.SandboxSpec{IdleSeconds: s.idle}}
		testbed.Diff(t, s.name, s.want, box.Deadline().Sub(base))
	}
}

func TestOperationsQueuesAndNetworks(t *testing.T) {
	t.Parallel()
	for _, op := range []farm.FileOp{farm.FileWrite, farm.FileTar, farm.FileMany, farm.FileMkdir, farm.FileDelete, farm.FileMove, farm.FileList, farm.FileStat, farm.FileRead, "other"} {
		testbed.Diff(t, fmt.Sprintf("%s reads", op), slices.Contains([]farm.FileOp{farm.FileList, farm.FileStat, farm.FileRead}, op), op.Reads())
	}
	if farm.NodeQueue("n1") == farm.QueueCPU || farm.NodeQueue("n1") == farm.NodeQueue("n2") {
		t.Error("two nodes have the same queue")
	}
	if got := (&farm.Job{ID: "job_1", Tenant: "acme"}).Ref(); got != (farm.Ref{Tenant: "acme", ID: "job_1"}) {
		t.Errorf("ref %+v", got)
	}
	if got := farm.Networks(); len(got) != 3 || got[0] != farm.NetworkNone {
		t.Errorf("networks %v", got)
	}
}

// Clients that are not written in Go replace texts for callers of the API by their own words: they have to know these as they are.
func TestClientsKnowTheTextsThatTheyReplace(t *testing.T) {
	t.Parallel()
	brackets := regexp.MustCompile(`\(.*\)`)
	ofSDKs := []string{
		farm.UploadWays, brackets.FindString(farm.SendFile), strings.Trim(brackets.FindString(farm.OrAsProcess), "()"),
		strings.TrimPrefix(farm.AllowLater, ", for a running sandbox by "),
	}
	for file, texts := range map[string][]string{
		"../../ui/js/parts/output.js":             {farm.OrAsProcess, farm.OrAutoInstall},
		"../../sdk/python/src/sandfarm/errors.py": ofSDKs,
		"../../sdk/typescript/src/results.ts":     ofSDKs,
	} {
		source, err := os.ReadFile(file)
		testbed.Must(t, err)
		for _, text := range texts {
			testbed.Check(t, strings.Contains(strings.ReplaceAll(string(source), `\`, ""), text), "%s does not know %q", file, text)
		}
	}
}

func TestPlural(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 files", 1: "1 file", 2: "2 files"} {
		if got := farm.Plural(n, "file"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "a", "ü\U0001f600", "\x01", "\x1b[0m", "\b\f\n\r\t", `"\`, "<>&", "\xff", "\xff\xfea", "\xe2\x80", "\u2028\u2029", "\ufffd", "\x7f"} {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		testbed.Must(t, encoder.Encode(text))
		want := out.Len() - len("\"\"\n")
		testbed.Check(t, farm.Quoted(text) == want && farm.Quoted([]byte(text)) == want, "%q: %d bytes, want %d", text, farm.Quoted(text), want)
	}
}
