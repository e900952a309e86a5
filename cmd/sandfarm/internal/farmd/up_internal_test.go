package farmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Whoever stops a farm reads how long it may take.
func TestStopNoteSaysHowLongItMayTake(t *testing.T) {
	t.Parallel()
	for grace, want := range map[time.Duration]string{10 * time.Second: "may take 10s to end, and then jobs 10s; ", time.Minute: "may take 10s to end, and then jobs 1m0s; "} {
		if got := stopNote(grace); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The configuration to paste must be valid for clients.
func TestWelcomeShowsTheConfigurationOfMCP(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{false, true} {
		var out bytes.Buffer
		newConsole(&out).welcome("bin/sandfarm", "", "127.0.0.1:8000", keys)
		_, rest, found := strings.Cut(out.String(), `{"mcpServers"`)
		line, _, _ := strings.Cut(`{"mcpServers"`+rest, "\n")
		var config struct {
			MCPServers map[string]struct {
				Type, URL string
				Headers   map[string]string
			}
		}
		if err := json.Unmarshal([]byte(line), &config); err != nil || !found {
			t.Fatalf("keys %v: %v in %q", keys, err, line)
		}
		server := config.MCPServers["sandfarm"]
		if server.Type != "http" || server.URL != "http://127.0.0.1:8000/mcp" || (server.Headers["Authorization"] != "") != keys {
			t.Errorf("keys %v: %+v", keys, server)
		}
	}
}

// A client cannot connect to "all addresses".
func TestWelcomeNamesAnAddressToConnectTo(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{"[::]:8000": "http://127.0.0.1:8000/v1\n", "0.0.0.0:81": "http://127.0.0.1:81/v1\n", "10.1.2.3:8000": "http://10.1.2.3:8000/v1\n", "[::1]:8000": "http://[::1]:8000/v1\n"} {
		var out bytes.Buffer
		newConsole(&out).welcome("sandfarm", "", addr, true)
		if text := out.String(); !strings.Contains(text, want) || !strings.Contains(text, `-H "Authorization: Bearer $SANDFARM_API_KEY"`) {
			t.Errorf("%s: no %q, or no key, in %s", addr, want, text)
		}
	}
}

// Another terminal finds the farm's folder only if it is told.
func TestWelcomeNamesTheFolderOfLocalCommands(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{"": "  API keys    sandfarm key create --local", "/srv/it's": `  API keys    SANDFARM_DATA='/srv/it'\''s' sandfarm key create --local`} {
		var out bytes.Buffer
		newConsole(&out).welcome("sandfarm", data, "127.0.0.1:8000", false)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q: no %q in %s", data, want, &out)
		}
	}
}

// A folder that a file of settings names counts as one that a variable names.
func TestOtherFolderIsNotTheUsualOne(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	testbed.Must(t, err)
	for data, want := range map[string]string{".sandfarm": "", here + "/.sandfarm": "", "/srv/farm": "/srv/farm", "data": here + "/data"} {
		testbed.Diff(t, data, want, otherFolder(data))
	}
}

// A data directory without a farm would have secrets that verify nothing.
func TestUpWithATakenPortNamesItsSettingAndMakesNothing(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer func() { _ = taken.Close() }()
	s := defaultSettings()
	s.Data, s.API.Listen, s.S3.Listen, s.Metrics.Listen = filepath.Join(t.TempDir(), "data"), taken.Addr().String(), taken.Addr().String(), "127.0.0.1:0"
	err = Up(t.Context(), s, "test", io.Discard)
	want := ""
	for i, name := range []string{"api.listen (SANDFARM_API_LISTEN)", "s3.listen (SANDFARM_S3_LISTEN)"} {
		want += strings.Repeat("\n", i) + "another program listens on " + taken.Addr().String() + ": stop it, or set " + name + " to another address"
	}
	testbed.Diff(t, "error", want, fmt.Sprint(err))
	if _, err := os.Stat(s.Data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("data directory: %v", err)
	}
	d, err := openData(s)
	testbed.Must(t, err)
	defer func() { _ = d.Close() }()
	if err := checkPorts(t.Context(), s); err != nil {
		t.Errorf("with a farm on the data directory: %v", err)
	}
}

func TestProgressShowsStepsWithTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out testbed.Log
		c := newConsole(&out)
		stop := c.watch()
		report := func(after time.Duration, message string, done, total float64) {
			time.Sleep(after)
			c.printProgress(farm.Progress{Message: message, Done: done, Total: total})
		}
		report(0, "Asking the registry for python", 0, 0)
		report(3*time.Second, "Step 1/2 : FROM base", 0, 2)
		report(0, "Step 2/2 : RUN pip install numpy", 1, 2)
		report(time.Second, "Collecting numpy", 1, 2) // too soon after the last line
		report(3*time.Second, "Downloading numpy", 1, 2)
		report(time.Second, "Downloading numpy", 1, 2)
		time.Sleep(34 * time.Second)
		report(27*time.Second, "Step 3/2 : "+strings.Repeat("x", 200), 2, 2)
		stop()
		time.Sleep(time.Minute)
		want := `  [ 0:00] Asking the registry for python
  [ 0:03] step 1 of 2: FROM base
  [ 0:03] step 2 of 2: RUN pip install numpy
  [ 0:07]   Downloading numpy
  [ 0:20] still working on step 2 of 2
  [ 0:30] still working on step 2 of 2
  [ 0:40] still working on step 2 of 2
  [ 0:50] still working on step 2 of 2
  [ 1:00] still working on step 2 of 2
  [ 1:09] step 3 of 2: ` + strings.Repeat("x", 107) + `…
`
		testbed.Diff(t, "", want, out.String())
	})
}

func TestConsoleIsSilentWithoutABuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out testbed.Log
		stop := newConsole(&out).watch()
		time.Sleep(time.Minute)
		stop()
		testbed.Diff(t, "printed", "", out.String())
	})
}

func TestThreads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now, cores int
		setting    string
		want       int
	}{
		"TwoCores":         {2, 2, "", 4},
		"ManyCores":        {64, 64, "", 66},
		"ByTheEnvironment": {2, 2, "2", 2},
		"LimitOfTheCgroup": {2, 8, "", 2},
	} {
		testbed.Diff(t, fmt.Sprintf("%s: threads", name), c.want, threads(c.now, c.cores, c.setting))
	}
}

// kernelHasSlices reports whether this kernel lets a thread of the usual policy have a slice of its own: Linux 6.12 and newer.
func kernelHasSlices(t *testing.T) bool {
	t.Helper()
	own, err := unix.SchedGetAttr(0, 0)
	testbed.Must(t, err)
	return own.Runtime != 0
}

// Every thread of the process and every process that it starts has the slice. An older kernel takes it and shows none.
func TestSlicesAreShort(t *testing.T) {
	t.Parallel()
	var want uint64
	if kernelHasSlices(t) {
		want = slice
	}
	shortenSlices()
	child := exec.Command("sleep", "60")
	testbed.Must(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	ids := []int{child.Process.Pid}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		testbed.Must(t, err)
		ids = append(ids, id)
	}
	for _, id := range ids {
		attr, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) { // the thread has ended
			continue
		}
		if err != nil || attr.Runtime != want || attr.Policy != unix.SCHED_NORMAL {
			t.Errorf("thread %d: %+v, %v; want a slice of %d ns", id, attr, err, want)
		}
	}
}

func TestDataDirIsOneProcess(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: filepath.Join(t.TempDir(), "new", "dir")}
	first, err := openData(s)
	testbed.Must(t, err)
	if _, err := openData(s); err == nil || !strings.Contains(err.Error(), "is running on "+s.Data) {
		t.Errorf("a second one: %v", err)
	}
	testbed.Must(t, first.Close())
	second, err := openData(s)
	testbed.Must(t, err)
	defer func() { _ = second.Close() }()
	if second.Namespace != first.Namespace || !bytes.Equal(second.Secret, first.Secret) || len(first.Secret) != secretBytes {
		t.Errorf("namespace %q, then %q; secrets differ: %v", first.Namespace, second.Namespace, !bytes.Equal(second.Secret, first.Secret))
	}
	other, err := openData(&Settings{Data: t.TempDir()})
	testbed.Must(t, err)
	defer func() { _ = other.Close() }()
	if other.Namespace == first.Namespace {
		t.Error("two farms have one namespace")
	}
	if info, err := os.Stat(s.Data); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", info, err)
	}
}

// The first start makes a key for the secrets of sandboxes, which later ones use. A key of the settings replaces it, but what it sealed is
// opened with it.
func TestDataDirHasAKeyForSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(key string) *Settings {
		t.Helper()
		s := defaultSettings()
		s.Data, s.Secrets.Key = dir, key
		d, err := openData(s)
		testbed.Must(t, err)
		defer func() { _ = d.Close() }()
		testbed.Must(t, d.useSecretKey(s))
		return s
	}
	const mine = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	if s := open(mine); s.Secrets.Key != mine || len(s.Secrets.OldKeys) > 0 {
		t.Errorf("with a key of its own: %d old keys", len(s.Secrets.OldKeys))
	}
	if _, err := os.Stat(filepath.Join(dir, "secrets-key")); err == nil {
		t.Error("a key is made where the settings have one")
	}
	first, second, third := open(""), open(""), open(mine)
	if first.Secrets.Key == "" || first.Secrets.Key != second.Secrets.Key || first.API.Secrets == nil || first.Worker.Secrets == nil {
		t.Error("the second start has another key, or the services have none")
	}
	if info, err := os.Stat(filepath.Join(dir, "secrets-key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the key: %v, %v", info, err)
	}
	ref := farm.Ref{Tenant: "acme", ID: "sbx_1"}
	sealed, err := first.API.Secrets.Seal(ref, secret.Bundle{Values: map[string]string{"A": "value"}})
	testbed.Must(t, err)
	if got, err := third.Worker.Secrets.Open(ref, sealed); err != nil || got.Values["A"] != "value" {
		t.Errorf("with a key in the settings, what was sealed before: %v", err)
	}
	if got, err := third.API.Secrets.Seal(ref, secret.Bundle{}); err != nil || canOpen(first, ref, got) {
		t.Errorf("with a key in the settings, the old one seals: %v", err)
	}
}

func canOpen(s *Settings, ref farm.Ref, sealed []byte) bool {
	_, err := s.Worker.Secrets.Open(ref, sealed)
	return err == nil
}

// A broken file is an error, releases the lock, and is never replaced: signatures made with it would become invalid.
func TestDataDirWithBrokenFile(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: t.TempDir()}
	testbed.Must(t, os.WriteFile(s.path("farm-id"), []byte("zz\n"), 0o600))
	for range 2 {
		if _, err := openData(s); err == nil || !strings.Contains(err.Error(), "farm-id") {
			t.Fatalf("a broken file gives %v", err)
		}
	}
	if text, err := os.ReadFile(s.path("farm-id")); err != nil || string(text) != "zz\n" {
		t.Errorf("the file holds %q: %v", text, err)
	}
}

// What another farm left in the engine is not removed, so it must not be said.
func TestDownWithoutAFarm(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: filepath.Join(t.TempDir(), "none")}
	var out strings.Builder
	if err := Down(t.Context(), s, &out); err == nil || !strings.Contains(err.Error(), "there is no farm in "+s.Data) || out.Len() > 0 {
		t.Errorf("%v: %s", err, out.String())
	}
	if _, err := os.Stat(s.Data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
}

func TestDoctorTakesAnObjectStoreWithoutTheBucket(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{http.StatusOK: StatusOK, http.StatusNotFound: StatusOK, http.StatusForbidden: StatusProblem} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		s := &Settings{S3: S3Settings{Endpoint: web.URL, AccessKey: "farm", SecretKey: "secret-key", Bucket: "sandfarm", Region: "us-east-1"}}
		found := doctorS3(t.Context(), s)
		web.Close()
		if len(found) != 1 || found[0].Status != want || strings.Contains(found[0].Found, "makes the bucket sandfarm") != (status == http.StatusNotFound) {
			t.Errorf("%d: %+v", status, found)
		}
	}
}

func TestOlderThan(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"20.10.24+dfsg1": true, "23.0.1": false, "24.0": false, "unknown": false, "": false, "22.99": true} {
		testbed.Diff(t, fmt.Sprintf("old(%q)", version), want, olderThan(version, 23, 0))
	}
	dir := t.TempDir()
	testbed.Diff(t, "nearest folder", dir, existingParent(filepath.Join(dir, "a", "b")))
}

func TestRunsLooksAtTheLock(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: t.TempDir()}
	if Runs(s) {
		t.Error("a farm runs on an empty directory")
	}
	d, err := openData(s)
	testbed.Must(t, err)
	if !Runs(s) {
		t.Error("no farm runs on a locked directory")
	}
	if err := d.Close(); err != nil || Runs(s) {
		t.Errorf("%v, runs: %t after the end", err, Runs(s))
	}
}

func TestMaxMemoryOfRedis(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		setting int
		limits  budget.Limits
		want    int64
	}{
		{0, budget.Limits{}, 0},
		{0, budget.Limits{Machine: 4096 * mib}, 1024 * mib},
		{0, budget.Limits{Machine: 4096 * mib, Process: 100 * mib}, 1024 * mib},
		{0, budget.Limits{Machine: 4096 * mib, Group: 1024 * mib, Process: 900 * mib}, 256 * mib},
		{0, budget.Limits{Machine: 8192 * mib}, 2048 * mib},
		{0, budget.Limits{Machine: 64 << 30}, 2048 * mib},
		{5000, budget.Limits{Machine: 64 << 30}, 5000 * mib},
	} {
		if got := (RedisSettings{MaxMemory: c.setting}).maxMemory(c.limits); got != c.want {
			t.Errorf("max_memory_mb %d, %+v: %d MiB, want %d", c.setting, c.limits, got/mib, c.want/mib)
		}
	}
}

// A web page that points its own name at this machine must not read the metrics.
func TestMetricsAreShownUnderTrustedNamesOnly(t *testing.T) {
	t.Parallel()
	counted, err := newMetrics("test", "v1")
	testbed.Must(t, err)
	p := &Parts{
		Settings: &Settings{Metrics: MetricsSettings{Listen: "127.0.0.1:0"}, API: api.Config{TrustedHosts: []string{"farm.example.com"}}},
		Log:      slog.New(slog.DiscardHandler), metrics: counted,
	}
	server, err := p.showMetrics(t.Context(), "")
	testbed.Must(t, err)
	defer server.Stop()
	for host, want := range map[string]int{
		server.Addr(): http.StatusOK, "localhost": http.StatusOK, "farm.example.com:9101": http.StatusOK, "": http.StatusOK,
		"evil.example.com": http.StatusForbidden, "evil.example.com:8002": http.StatusForbidden,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr()+"/metrics", nil)
		testbed.Must(t, err)
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		testbed.Must(t, err)
		_ = answer.Body.Close()
		testbed.Diff(t, fmt.Sprintf("Host %q: status", host), want, answer.StatusCode)
	}
}

// With an S3 service of one's own, s3.listen is where callers download. The built-in one has that address itself.
func TestDownloadsArePassedOn(t *testing.T) {
	t.Parallel()
	blobs, err := blob.New(blob.Config{Endpoint: "http://127.0.0.1:1", AccessKey: "k", SecretKey: "s"})
	testbed.Must(t, err)
	for endpoint, want := range map[string]int{"http://127.0.0.1:1": http.StatusForbidden, "": 0} {
		p := &Parts{
			Settings: &Settings{S3: S3Settings{Endpoint: endpoint, Listen: "127.0.0.1:0"}}, Log: slog.New(slog.DiscardHandler), Blobs: blobs, links: blob.NewLinks(1, 1),
		}
		server, err := p.startDownloads(t.Context())
		testbed.Must(t, err)
		status := 0
		if server.Addr() != "" {
			answer, err := http.Get("http://" + server.Addr() + "/sandfarm/k") //nolint:noctx // of this test's server
			testbed.Must(t, err)
			_ = answer.Body.Close()
			status = answer.StatusCode
		}
		server.Stop()
		testbed.Diff(t, fmt.Sprintf("endpoint %q: status without a link", endpoint), want, status)
	}
}

// A worker in the process of the API does not wait for what requests hold while they wait for its jobs.
func TestMemoryOfAPIAndWorker(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		counted, err := newMetrics("test", "v1")
		testbed.Must(t, err)
		p := &Parts{Settings: &Settings{MemoryBudget: 64}, metrics: counted}
		testbed.Must(t, p.openMemory(both))
		for _, tenant := range []string{"a", "b"} {
			_, ok := p.Memory.TryAcquire(tenant, p.Memory.Share())
			testbed.Require(t, ok, "the API has no share for tenant %s", tenant)
		}
		_, ok := p.work.TryAcquire("a", p.work.Share())
		testbed.Check(t, ok == both, "in one process %v: the worker has memory: %v", both, ok)
		sum := p.Memory.Stats().Size
		if both {
			sum += p.work.Stats().Size
		}
		testbed.Check(t, sum == 32<<20, "in one process %v: %d bytes in all", both, sum)
	}
}

// The budgets of a worker and the large pages of its package index, all together, leave a third of its memory for the rest.
func TestMemoryOfAWorkerFitsItsLimit(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{512 << 20, 1 << 30, 8 << 30} {
		process := limit / 5 * 4 // GOMEMLIMIT
		size := budget.Limits{Process: process, Group: limit, Machine: 64 << 30}.Size()
		pages := pagesMemory(size)
		testbed.Check(t, size+pages <= limit/2, "limit %d MiB: the budgets have %d MiB, pages %d MiB", limit>>20, size>>20, pages>>20)
		testbed.Check(t, limit < 1<<30 || pages/2 >= 128<<20, "limit %d MiB: %d MiB are for one page: the largest of PyPI and npm take up to 128", limit>>20, pages>>21)
	}
}
