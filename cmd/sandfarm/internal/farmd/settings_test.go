package farmd_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// These tests read the process's environment, so they are not parallel. TestMain has removed our variables from it.

func TestMain(m *testing.M) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "SANDFARM_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandfarm.toml")
	testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func load(t *testing.T, path string) *farmd.Settings {
	t.Helper()
	s, err := farmd.Load(path)
	if err != nil {
		t.Fatalf("load %s: %v", path, err)
	}
	return s
}

// The example changes nothing as printed, and is valid with every line uncommented.
func TestExampleLoads(t *testing.T) {
	want := load(t, "")
	testbed.Diff(t, "the example changes settings", want, load(t, file(t, farmd.Example())))
	// An array of tables is left out: it only shows the form of a key.
	var lines []string
	inTables := false
	for line := range strings.Lines(farmd.Example()) {
		if strings.HasPrefix(line, "#[[") {
			inTables = true
		} else if strings.HasPrefix(line, "[") {
			inTables = false
		}
		if rest, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(rest, " ") && !inTables {
			line = rest
		}
		lines = append(lines, line)
	}
	got := load(t, file(t, strings.Join(lines, "")))
	testbed.Diff(t, "limits", want.Limits, got.Limits)
	testbed.Diff(t, "worker", want.Worker, got.Worker, cmpopts.EquateEmpty())
}

// Every setting of the example has a comment of its own.
func TestExampleExplainsEverything(t *testing.T) {
	lines := strings.Split(farmd.Example(), "\n")
	setting := regexp.MustCompile(`^#[a-z0-9_]+ = `)
	n := 0
	for i, line := range lines {
		if !setting.MatchString(line) {
			continue
		}
		n++
		explained := false
		for j := i - 1; j >= 0 && strings.HasPrefix(lines[j], "# "); j-- {
			if !strings.HasPrefix(lines[j], "# Allowed: ") && !strings.HasPrefix(lines[j], "# Environment: ") {
				explained = true
			}
		}
		if !explained {
			t.Errorf("%s is not explained", line)
		}
	}
	if n < 60 {
		t.Errorf("the example has %d settings", n)
	}
}

func TestEveryProblemAtOnce(t *testing.T) {
	t.Setenv("SANDFARM_WORKER_SLOTS", "many")
	t.Setenv("SANDFARM_REDIS_URL", "http://user:topsecret@nowhere")
	_, err := farmd.Load(file(t, `
unknown = 1
[log]
level = "loud"
[api]
listen = "0.0.0.0:8000"
[s3]
endpoint = "http://localhost:9000"
[scheduler]
node_timeout = "1ms"
[telemetry]
otlp_endpoint = "localhost:4318"
[limits.memory_mb]
min = 4096
max = 1024
`))
	if err == nil {
		t.Fatal("it loads")
	}
	for _, want := range []string{
		"unknown", "log.level", "worker.slots", "redis.url", "api.listen", "s3.access_key", "scheduler.node_timeout", "telemetry.otlp_endpoint", "limits.memory_mb",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not mentioned:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "topsecret") {
		t.Errorf("a secret is shown:\n%v", err)
	}
}

func TestDurability(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"[redis]\ndurability = \"aof\"": "",
		"[redis]\ndurability = \"replica\"\nurl = \"redis://h\"": "",
		"[redis]\ndurability = \"replica\"":                      "has no replica: set redis.url",
		"[redis]\ndurability = \"always\"":                       "redis.durability",
	} {
		_, err := farmd.Load(file(t, text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	testbed.Diff(t, "default", "everysec", load(t, "").Redis.Durability)
}

func TestUnreadVariablesAreLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	farmd.WarnOfUnread(slog.New(slog.NewTextHandler(&out, nil)), []string{
		"SANDFARM_LISTEN=127.0.0.1:1", "SANDFARM_API_LISTEN=127.0.0.1:1", "SANDFARM_URL=http://x", "SANDFARM_API_KEY=secret", "SANDFARM_CONFIG=x",
		"SANDFARM_TEST_MINIO=x", "PATH=/bin",
	})
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "variable=SANDFARM_LISTEN") || strings.Contains(got, "127") {
		t.Errorf("logged %q, want SANDFARM_LISTEN alone and not its value", got)
	}
}

func TestServicesShareLimits(t *testing.T) {
	t.Setenv("SANDFARM_LIMITS_MEMORY_MB_MAX", "3000")
	t.Setenv("SANDFARM_DATA", "relative/dir")
	s := load(t, "")
	for name, l := range map[string]farm.Limits{"api": s.API.Limits, "worker": s.Worker.Limits, "scheduler": s.Scheduler.Limits} {
		if l != s.Limits || l.Memory.Max != 3000 || l.MaxCodeBytes != farm.DefaultLimits().MaxCodeBytes {
			t.Errorf("%s has limits of its own: %+v", name, l)
		}
	}
	if !filepath.IsAbs(s.Data) || !strings.HasSuffix(s.Data, "relative/dir") {
		t.Errorf("data is %q", s.Data)
	}
	if _, err := farmd.Load(filepath.Join(t.TempDir(), "missing.toml")); err == nil {
		t.Error("a missing file is not reported")
	}
}

// In a list of the environment commas separate rules, so semicolons separate the methods of one.
func TestRulesWithMethodsInTheEnvironment(t *testing.T) {
	t.Setenv("SANDFARM_EGRESS_ALLOW", "api.example.com,GET;HEAD data.example.com:8443")
	s, err := farmd.Load("")
	testbed.Must(t, err)
	var got []string
	for _, r := range s.API.Allow {
		got = append(got, r.String())
	}
	testbed.Diff(t, "", []string{"api.example.com", "GET,HEAD data.example.com:8443"}, got)
}

func TestCallbackSecretIsThatOfTheFarm(t *testing.T) {
	t.Setenv("SANDFARM_DATA", t.TempDir())
	s := load(t, "")
	if secret, err := farmd.CallbackSecret(s, "a"); err == nil || !strings.Contains(err.Error(), "no farm in "+s.Data) || !strings.Contains(err.Error(), "SANDFARM_DATA") {
		t.Errorf("in a folder without a farm: %q, %v", secret, err)
	}
	kept := filepath.Join(s.Data, "secret")
	if _, err := os.Stat(kept); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a secret was made: %v", err)
	}
	testbed.Must(t, os.WriteFile(kept, []byte(strings.Repeat("ab", 32)+"\n"), 0o600))
	first, err := farmd.CallbackSecret(s, "a")
	if err != nil || !strings.HasPrefix(first, "whsec_") {
		t.Fatalf("secret %q: %v", first, err)
	}
	again, err := farmd.CallbackSecret(s, "a")
	other, _ := farmd.CallbackSecret(s, "b")
	if err != nil || again != first || other == first {
		t.Errorf("secrets %q, %q, %q: %v", first, again, other, err)
	}
	for _, name := range []string{"", "team blue", "fleet", strings.Repeat("a", 65)} {
		if secret, err := farmd.CallbackSecret(s, name); err == nil || !strings.Contains(err.Error(), farm.TenantNames) {
			t.Errorf("the secret of the tenant %q, which cannot exist: %q, %v", name, secret, err)
		}
	}
	for _, broken := range []string{"", "xyz", hex.EncodeToString([]byte("short"))} {
		testbed.Must(t, os.WriteFile(kept, []byte(broken), 0o600))
		if secret, err := farmd.CallbackSecret(s, "a"); err == nil {
			t.Errorf("a broken secret file %q gives %q", broken, secret)
		}
	}
}

// oldConfig is the config.toml of the first older system's README, with its other settings.
const oldConfig = `
[server]
host = "0.0.0.0"
port = 8123

[docker]
default_image = "python-sandbox:latest"
open_mount_directory = true
container_work_dir = "/app/results"
mem_limit = "1g"
memswap_limit = "1g"

[logging]
level = "WARNING"
log_file = "./logs/mcp_sandbox.log"
use_structured_format = true

[mirror]
pypi_index_url = "https://mirror.example/pypi/simple"

[auth]
require_auth = false

[surprise]
deep = { er = 1 }
`

func TestImportedSettingsLoad(t *testing.T) {
	t.Parallel()
	got, err := farmd.ImportConfig([]byte(oldConfig))
	testbed.Must(t, err)
	file := filepath.Join(t.TempDir(), "sandfarm.toml")
	testbed.Must(t, os.WriteFile(file, []byte(got.TOML), 0o600))
	s, err := farmd.Load(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, got.TOML)
	}
	found := map[string]any{
		"listen": s.API.Listen, "level": s.Log.Level, "format": s.Log.Format, "memory": s.Limits.Memory.Default, "index": s.Index.PyPIURL,
	}
	want := map[string]any{
		"listen": "127.0.0.1:8123", "level": "warn", "format": "json", "memory": 1024, "index": "https://mirror.example/pypi/simple/",
	}
	testbed.Diff(t, "", want, found)
	notes := strings.Join(got.Notes, "\n")
	for _, name := range []string{"server.host", "docker.default_image", "docker.memswap_limit", "docker.open_mount_directory", "logging.log_file", "auth.require_auth", "surprise.deep.er: unknown setting"} {
		if !strings.Contains(notes, name) {
			t.Errorf("%s is not mentioned:\n%s", name, notes)
		}
	}
}

func TestImportTranslatesEachSetting(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		old, want string
		notes     int
	}{
		"Nothing":   {"", "", 0},
		"Loopback":  {"[server]\nhost = 'localhost'", "[api]\nlisten = \"localhost:8000\"\n", 0},
		"Port":      {"[server]\nport = 9000", "[api]\nlisten = \"127.0.0.1:9000\"\n", 0},
		"Memory":    {"[docker]\nmem_limit = '512m'", "[limits.memory_mb]\ndefault = 512\n", 0},
		"Bytes":     {"[docker]\nmem_limit = 1073741824", "[limits.memory_mb]\ndefault = 1024\n", 0},
		"GB":        {"[docker]\nmem_limit = '2GB'", "[limits.memory_mb]\ndefault = 2048\n", 0},
		"Least":     {"[docker]\nmem_limit = '65536kb'", "[limits.memory_mb]\ndefault = 64\n", 0},
		"Most":      {"[docker]\nmem_limit = '64g'", "[limits.memory_mb]\ndefault = 65536\n", 0},
		"OtherDir":  {"[docker]\ncontainer_work_dir = '/data'", "", 1},
		"PythonEnv": {"[paths]\nresults_dir = 'results'\n[logging]\nformat = 'x'", "", 2},
	} {
		got, err := farmd.ImportConfig([]byte(test.old))
		_, text, _ := strings.Cut(got.TOML, "\n\n")
		if err != nil || text != test.want || len(got.Notes) != test.notes {
			t.Errorf("%s: %q %q %v", name, text, got.Notes, err)
		}
	}
}

func TestImportRejectsInvalidSettings(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]string{
		"NoTOML": "[server", "WrongType": "[server]\nport = 'x'", "Port": "[server]\nport = 65536", "Memory": "[docker]\nmem_limit = 'much'",
		"TooLittle": "[docker]\nmem_limit = '63m'", "Level": "[logging]\nlevel = 'loud'", "TooMuch": "[docker]\nmem_limit = '65537m'", "Unit": "[docker]\nmem_limit = '1bb'",
		"NoMemory": "[docker]\nmem_limit = ['1g']", "Mirror": "[mirror]\npypi_index_url = 'ftp://mirror.example/simple'", "NoTable": "server = 5",
	} {
		got, err := farmd.ImportConfig([]byte(old))
		if err == nil || strings.Contains(err.Error(), "struct") {
			t.Errorf("%s: %q %v", name, got.TOML, err)
		}
		if name == "WrongType" && (!strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), "server.port")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server in a sandbox that sent bytes after an answer had net/http log them beside the farm's own log, however many there were.
func TestBytesOfSandboxesAreNotLogged(t *testing.T) {
	farmd.Logger(load(t, ""))
	testbed.Check(t, log.Writer() == io.Discard, "the standard library logs to %v", log.Writer()) //nolint:forbidigo // it is the subject
}
