package farmd

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

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
	if err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{".sandfarm": "", here + "/.sandfarm": "", "/srv/farm": "/srv/farm", "data": here + "/data"} {
		if got := otherFolder(data); got != want {
			t.Errorf("%s: %q, want %q", data, got, want)
		}
	}
}
