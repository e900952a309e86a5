package farmd

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// What a person is to paste into a client must be what the client takes.
func TestWelcomeShowsTheConfigurationOfMCP(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{false, true} {
		var out bytes.Buffer
		newConsole(&out).welcome("http://127.0.0.1:8000", keys)
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
