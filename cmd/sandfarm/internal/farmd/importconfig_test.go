package farmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
)

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
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sandfarm.toml")
	if err := os.WriteFile(file, []byte(got.TOML), 0o600); err != nil {
		t.Fatal(err)
	}
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
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
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
