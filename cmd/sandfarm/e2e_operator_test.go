//go:build integration

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestMetricsAndDashboard scrapes a busy farm of single services with API keys, with a real Prometheus and the file that
// ships: every query of the dashboard and of the alerts returns numbers.
func TestMetricsAndDashboard(t *testing.T) {
	t.Parallel()
	f := newServicesFarm(t)
	const key = "sf_key_of_the_operators_test_0123456789"
	var err error
	f.Client, err = client.New(f.url, client.WithKey(key))
	testbed.Must(t, err)
	targets := map[string]string{}
	for name, shipped := range map[string]string{"api": "127.0.0.1:8002", "worker": "127.0.0.1:9101", "scheduler": "127.0.0.1:9102"} {
		targets[shipped] = testbed.Address(t)
		f.kill(name, syscall.SIGTERM)
		f.commands[name] = append([]string{
			"env", "SANDFARM_METRICS_LISTEN=" + targets[shipped], "SANDFARM_WORKER_POOL=python=1", "SANDFARM_API_KEYS=ops:" + hashOf(key),
		}, f.commands[name]...)
		f.startParts(name)
	}
	f.awaitReady()
	if resp, err := http.Get(f.url + "/metrics"); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("the API's metrics without a key: %v %v, want 401", resp, err)
	} else {
		_ = resp.Body.Close()
	}
	stopWork := f.work(t)
	p := startPrometheus(t, targets)

	queries := p.dashboard(t)
	if len(queries) < 40 {
		t.Errorf("the dashboard has %d queries", len(queries))
	}
	for title, query := range p.alerts(t) {
		queries[title] = query
	}
	missing := map[string]string{}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		clear(missing)
		for title, query := range queries {
			if problem := p.ask(t, query); problem != "" {
				missing[title] = query + "\n  " + problem
			}
		}
		if len(missing) == 0 || time.Now().After(end) {
			break
		}
	}
	for title, problem := range missing {
		t.Errorf("%s: %s", title, problem)
	}
	p.rulesAreEvaluated(t)
	stopWork()
}

// work keeps the farm busy until it is stopped: jobs of several kinds, artifacts, code that raises.
func (f *farmProcess) work(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			made, err := f.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(60*time.Second))
			if err != nil {
				continue
			}
			for _, code := range []string{"print(1)", "open('out.txt', 'w').write('x' * 1000)", "1/0", "import time; time.sleep(0.2)"} {
				_, _ = f.Execute(ctx, made.Sandbox.ID, wire.ExecuteRequest{Code: code}, client.WithWait(30*time.Second))
			}
			_, _ = f.Close(ctx, made.Sandbox.ID)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// prometheus is a real one that scrapes a farm every second.
type prometheus struct{ url string }

func startPrometheus(t *testing.T, targets map[string]string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	text := string(deployed(t, "prometheus/prometheus.yml"))
	text = strings.ReplaceAll(text, "_interval: 15s", "_interval: 1s")
	text = strings.ReplaceAll(text, "\n#  ", "\n  ") // the separate services
	for from, to := range targets {
		if !strings.Contains(text, from) {
			t.Fatalf("prometheus.yml does not name %s", from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	for name, content := range map[string][]byte{"prometheus.yml": []byte(text), "alerts.yml": deployed(t, "prometheus/alerts.yml")} {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	addr := testbed.Address(t)
	out := &testbed.Log{}
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start prometheus (deploy/setup.sh test installs it): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("output of prometheus:\n%s", out)
		}
	})
	p := &prometheus{url: "http://" + addr}
	until(t.Context(), t, "prometheus sees every target", time.Minute, func() bool {
		for job := range map[string]bool{"sandfarm": true, "sandfarm-worker": true, "sandfarm-scheduler": true} {
			if p.ask(t, `up{job="`+job+`"} == 1`) != "" {
				return false
			}
		}
		return true
	})
	return p
}

func deployed(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "deploy", path))
	testbed.Must(t, err)
	return content
}

// ask returns what is wrong with the answer to a query: an error, no series, or only values that are not numbers.
func (p *prometheus) ask(t *testing.T, query string) string {
	t.Helper()
	answer, err := http.PostForm(p.url+"/api/v1/query", url.Values{"query": {query}})
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	var got struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil {
		return err.Error()
	}
	if got.Status != "success" || len(got.Data.Result) == 0 {
		return fmt.Sprintf("%s %s: %d series", got.Status, got.Error, len(got.Data.Result))
	}
	for _, series := range got.Data.Result {
		text, _ := series.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
			return ""
		}
	}
	return "no series has a number"
}

// dashboard returns the queries of the dashboard by their panel, as Grafana would send them.
func (p *prometheus) dashboard(t *testing.T) map[string]string {
	t.Helper()
	var board struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ RefID, Expr string }
		}
	}
	testbed.Must(t, json.Unmarshal(deployed(t, "grafana/sandfarm.json"), &board))
	queries := map[string]string{}
	for _, panel := range board.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %s asks nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			queries["panel "+panel.Title+" "+target.RefID] = strings.ReplaceAll(target.Expr, "$__rate_interval", "30s")
		}
	}
	return queries
}

// threshold is the end of an alert's query.
var threshold = regexp.MustCompile(` (>|<|==) [0-9.]+$`)

// rule is an alert as Prometheus has it.
type rule struct {
	Name, Query, Health, LastError, LastEvaluation string
	Labels, Annotations                            map[string]string
}

func (p *prometheus) rules(t *testing.T) []rule {
	t.Helper()
	var got struct {
		Data struct{ Groups []struct{ Rules []rule } }
	}
	testbed.Must(t, json.Unmarshal(download(t, p.url+"/api/v1/rules"), &got))
	if len(got.Data.Groups) != 1 || len(got.Data.Groups[0].Rules) < 15 {
		t.Fatalf("the rules are %+v", got)
	}
	return got.Data.Groups[0].Rules
}

// alerts returns the left sides of the alerts' comparisons: on a healthy farm the whole query returns nothing.
func (p *prometheus) alerts(t *testing.T) map[string]string {
	t.Helper()
	queries := map[string]string{}
	for _, r := range p.rules(t) {
		if !threshold.MatchString(r.Query) {
			t.Errorf("alert %s does not end with a threshold: %s", r.Name, r.Query)
		}
		queries["alert "+r.Name] = threshold.ReplaceAllString(r.Query, "")
	}
	return queries
}

// rulesAreEvaluated checks that Prometheus can evaluate an alert, and that the manual describes it.
func (p *prometheus) rulesAreEvaluated(t *testing.T) {
	t.Helper()
	manual, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	testbed.Must(t, err)
	for _, r := range p.rules(t) {
		if r.Health != "ok" || r.LastError != "" {
			t.Errorf("alert %s: %s %s", r.Name, r.Health, r.LastError)
		}
		if !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) || r.Annotations["summary"] == "" {
			t.Errorf("alert %s has labels %v and annotations %v", r.Name, r.Labels, r.Annotations)
		}
		if !strings.Contains(string(manual), r.Name) {
			t.Errorf("docs/operations.md does not say what to do about %s", r.Name)
		}
	}
}

// Each alert fires on a farm that has its problem, and none on a farm without problems.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "deploy", "prometheus")
	for _, argv := range [][]string{{"check", "config", "prometheus.yml"}, {"test", "rules", "alerts_test.yml"}} {
		check := exec.Command("promtool", argv...)
		check.Dir = dir
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(argv, " "), err, out)
		}
	}
	tests := string(deployed(t, "prometheus/alerts_test.yml"))
	for _, name := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(deployed(t, "prometheus/alerts.yml")), -1) {
		if !strings.Contains(tests, "- name: "+name[1]+"\n") {
			t.Errorf("no test has %s fire", name[1])
		}
	}
}

// local runs a verb with --local as the operator on the farm's machine does, and returns its answer. It may print no log.
func (f *farmProcess) local(into any, args ...string) {
	f.t.Helper()
	var out, noise bytes.Buffer
	verb := exec.CommandContext(f.t.Context(), program, append(args, "--local", "--json")...)
	verb.Env, verb.Stdout, verb.Stderr = f.env, &out, &noise
	if err := verb.Run(); err != nil {
		f.t.Fatalf("%v: %v\n%s", args, err, noise.String())
	}
	if strings.Contains(noise.String(), "level=") {
		f.t.Errorf("%v printed a log: %s", args, noise.String())
	}
	if into != nil {
		if err := json.Unmarshal(out.Bytes(), into); err != nil {
			f.t.Fatalf("%v: %v in %s", args, err, out.String())
		}
	}
}

// TestKeysMadeLocally: the first key, made without one on the farm's machine, closes an open farm.
func TestKeysMadeLocally(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	_, err := f.Limits(t.Context())
	testbed.Must(t, err)
	var first, second wire.NewKey
	f.local(&first, "key", "create", "--tenant", "blue", "--scope", "admin", "--scope", "run")
	f.local(&second, "key", "create", "--tenant", "blue")
	until(t.Context(), t, "the farm asks for a key", time.Minute, func() bool {
		_, err := f.Limits(t.Context())
		return client.CodeOf(err) == "unauthorized"
	})
	f.local(nil, "key", "revoke", first.Key.ID)
	var keys wire.List[wire.Key]
	f.local(&keys, "key", "ls")
	if len(keys.Items) != 1 || keys.Items[0].ID != second.Key.ID {
		t.Errorf("keys %+v", keys)
	}
}
