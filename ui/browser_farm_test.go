//go:build browser

package ui_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// timeout is how long a test waits for what must come: the machine may be busy with other things.
const timeout = 2 * time.Minute

// Keys of the farm with keys: two tenants, the first of which also has a key that may read only. The operator sees everything.
const (
	acme, acmeReads, rival, operator = "key-of-acme-0123456789", "key-of-acme-reads-0123", "key-of-rival-012345678", "key-of-operator-01234"
)

// testFarm is a farm in a process of its own.
type testFarm struct {
	t   testing.TB
	url string
}

func sum(key string) string { s := sha256.Sum256([]byte(key)); return hex.EncodeToString(s[:]) }

// withKeys are the settings of a farm with keys.
func withKeys() []string {
	return []string{"SANDFARM_API_KEYS=" + strings.Join([]string{
		"acme:" + sum(acme) + ":run+read", "acme:" + sum(acmeReads) + ":read", "rival:" + sum(rival) + ":run+read", "ops:" + sum(operator) + ":run+read+admin",
	}, ",")}
}

// program is the built sandfarm.
func program() string {
	return cmp.Or(os.Getenv("SANDFARM_TEST_PROGRAM"), filepath.Join("..", "bin", "sandfarm"))
}

// startFarm starts a farm, and removes it with its sandboxes at the end of the test.
func startFarm(t testing.TB, env ...string) *testFarm {
	t.Helper()
	program := program()
	api := testbed.Address(t)
	f := &testFarm{t: t, url: "http://" + api}
	env = append(append(os.Environ(), "SANDFARM_DATA="+t.TempDir(), "SANDFARM_API_LISTEN="+api, "SANDFARM_S3_LISTEN="+testbed.Address(t),
		"SANDFARM_ENGINE_NAMESPACE=sandfarm-ui-"+strings.ReplaceAll(api, ":", "-"), "SANDFARM_WORKER_POOL=none", "SANDFARM_METRICS_LISTEN=none"), env...)
	var log bytes.Buffer
	up := exec.Command(program, "up")
	up.Env, up.Stdout, up.Stderr = env, &log, &log
	up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := up.Start(); err != nil {
		t.Fatalf("start %s: %v (make build makes it)", program, err)
	}
	t.Cleanup(func() {
		_ = up.Process.Signal(syscall.SIGTERM)
		_ = up.Wait()
		ctx, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		down := exec.CommandContext(ctx, program, "down")
		down.Env = env
		if text, err := down.CombinedOutput(); err != nil {
			t.Logf("remove the farm: %v: %s", err, text)
		}
		if t.Failed() {
			t.Logf("log of the farm:\n%s", log.String())
		}
	})
	deadline := time.Now().Add(timeout)
	for {
		answer, err := http.Get(f.url + "/readyz") //nolint:noctx // the deadline is below
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return f
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the farm is not ready: %v\n%s", err, log.String())
		}
		time.Sleep(100 * time.Millisecond) // the poll of a readiness check
	}
}

// call sends a request with a key, and gives the answer's JSON.
func call[T any](f *testFarm, key, method, path string, body any) T {
	f.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, done := context.WithTimeout(f.t.Context(), timeout)
	defer done()
	r, err := http.NewRequestWithContext(ctx, method, f.url+path, bytes.NewReader(text))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	got, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode >= 300 {
		f.t.Fatalf("%s %s: %d %v: %s", method, path, answer.StatusCode, err, got)
	}
	var out T
	if err := json.Unmarshal(got, &out); err != nil && answer.StatusCode != http.StatusNoContent {
		f.t.Fatalf("%s %s: %v: %s", method, path, err, got)
	}
	return out
}

// record is what tests read of jobs and sandboxes.
type record struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandbox_id"`
	State     string `json:"state"`
}

// run runs code in a sandbox of its own and waits for its end.
func (f *testFarm) run(key, code string) record {
	f.t.Helper()
	job := call[record](f, key, "POST", "/v1/run?wait=60", map[string]any{"code": code})
	if job.State != "completed" {
		f.t.Fatalf("the job is %s", job.State)
	}
	return job
}

// sandbox makes a sandbox and waits until it is ready.
func (f *testFarm) sandbox(key string, fields map[string]any) string {
	f.t.Helper()
	made := call[struct{ Sandbox record }](f, key, "POST", "/v1/sandboxes?wait=60", fields)
	return made.Sandbox.ID
}

// execute runs code in a sandbox.
func (f *testFarm) execute(key, sandbox, code string) record {
	f.t.Helper()
	return call[record](f, key, "POST", fmt.Sprintf("/v1/sandboxes/%s/execute?wait=60", sandbox), map[string]any{"code": code})
}

// accessible looks with axe for what keeps people from using a page, in both themes and sizes.
func (p *page) accessible(name string) {
	p.t.Helper()
	script, err := os.ReadFile(os.Getenv("SANDFARM_TEST_AXE"))
	if err != nil {
		p.t.Fatalf("read axe: %v (make test-ui fetches it)", err)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1360, 390} {
			p.size(width, 844, scheme)
			p.do(chromedp.Evaluate(string(script), nil))
			for _, found := range value[[]string](p, `axe.run(document, { iframes: false }).then((r) => r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.target.join(" ") + " " + n.failureSummary)))`) {
				p.t.Errorf("%s, %s, %d wide: %s", name, scheme, width, found)
			}
			if over := value[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
				p.t.Errorf("%s, %s, %d wide: the page is %d pixels too wide", name, scheme, width, over)
			}
		}
	}
	p.size(1360, 900, "light")
}
