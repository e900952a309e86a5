package execution

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestResultSaysWhatTheNetworkReaches(t *testing.T) {
	t.Parallel()
	raised := func(value string, trace ...string) *farm.Result {
		return &farm.Result{Execute: &farm.ExecuteResult{ExitCode: 1, Error: &farm.CodeError{Name: "Error", Value: value, Traceback: trace}}}
	}
	printed := func(stdout, stderr string) *farm.Result {
		return &farm.Result{Execute: &farm.ExecuteResult{Stdout: stdout, Stderr: stderr}}
	}
	ran := func(command string, code int, stderr string) *farm.Result {
		return &farm.Result{Command: &farm.CommandResult{Commands: []farm.CommandOutcome{{Command: "true"}, {Command: command, ExitCode: code, Stderr: stderr}}}}
	}
	many := make([]string, hostsInNote+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d.example.com", i)
	}
	for name, test := range map[string]struct {
		result *farm.Result
		spec   farm.SandboxSpec
		want   string // in the note; empty: there is none
	}{
		"Value":      {raised("<urlopen error [Errno -3] Temporary failure in name resolution>"), farm.SandboxSpec{Network: farm.NetworkPackages}, `network "packages"`},
		"Traceback":  {raised("no data", "gaierror: [Errno -2] Name or service not known", "ValueError: no data"), farm.SandboxSpec{Network: farm.NetworkNone}, `network "none"`},
		"Address":    {raised("[Errno 101] Network is unreachable"), farm.SandboxSpec{Network: farm.NetworkNone}, `network "none"`},
		"Caught":     {printed("Error: getaddrinfo EAI_AGAIN example.com", ""), farm.SandboxSpec{Network: farm.NetworkPackages}, `network "packages"`},
		"Stderr":     {printed("", "fatal: Could not resolve host: example.com"), farm.SandboxSpec{Network: farm.NetworkPackages}, `network "packages"`},
		"Command":    {ran("git clone https://example.com/x", 128, "fatal: unable to access: Could not resolve host: example.com"), farm.SandboxSpec{Network: farm.NetworkPackages}, `network "packages"`},
		"SilentCurl": {ran("curl -s https://example.com", 6, ""), farm.SandboxSpec{Network: farm.NetworkPackages}, `network "packages"`},
		"Denied":     {raised("Tunnel connection failed: 403 Forbidden"), farm.SandboxSpec{Network: farm.NetworkAllowlist, AllowHosts: []string{"api.example.com"}}, "(api.example.com)"},
		"NoHosts":    {raised("Tunnel connection failed: 403 Forbidden"), farm.SandboxSpec{Network: farm.NetworkAllowlist}, "(it is empty)"},
		"ManyHosts":  {raised("Tunnel connection failed: 403 Forbidden"), farm.SandboxSpec{Network: farm.NetworkAllowlist, AllowHosts: many}, "h9.example.com and 1 more"},
		"OtherError": {raised("division by zero", "ZeroDivisionError: division by zero"), farm.SandboxSpec{Network: farm.NetworkNone}, ""},
		"OtherExit6": {ran("exit 6", 6, ""), farm.SandboxSpec{Network: farm.NetworkNone}, ""},
		"OwnServer":  {raised("[Errno 111] Connection refused"), farm.SandboxSpec{Network: farm.NetworkNone}, ""},
		"File":       {&farm.Result{File: &farm.FileResult{}}, farm.SandboxSpec{Network: farm.NetworkNone}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, enabled := range []bool{true, false} {
				note := networkNote(test.result, &test.spec, enabled)
				if (note != "") != (test.want != "") || !strings.Contains(note, test.want) {
					t.Errorf("note %q, want one with %q", note, test.want)
				}
				if offers := strings.Contains(note, "allow_hosts"); note != "" && test.spec.Network != farm.NetworkAllowlist && offers != enabled {
					t.Errorf("allowlist enabled %t: note %q", enabled, note)
				}
			}
		})
	}
}
