package execution

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// curlUnresolved is curl's exit code when a name does not resolve; with -s it prints nothing.
	curlUnresolved = 6
	// hostsInNote bounds the rules of allow_hosts that a note names.
	hostsInNote = 10
)

// networkNote says what the sandbox reaches and how that is set, if the result shows that the code did not reach a host; "" otherwise. In no
// sandbox do names resolve, and a host of allow_hosts that is down looks different: the proxy answers for it. allowlist: the farm has that network.
func networkNote(r *farm.Result, s *farm.SandboxSpec, allowlist bool) string {
	if !showsUnreached(r) {
		return ""
	}
	other := "Write the data that the code needs to the workspace."
	if allowlist {
		other = `A sandbox with network "allowlist" also reaches the hosts of allow_hosts, within what the farm's operator allows. Otherwise write the data that the code needs to the workspace.`
	}
	switch s.Network {
	case farm.NetworkNone:
		return `A host was not reached: this sandbox has network "none". One with network "packages" reaches the package indexes. ` + other
	case farm.NetworkAllowlist:
		return fmt.Sprintf(`A host was not reached: this sandbox has network "allowlist" and reaches the package indexes and the hosts of allow_hosts (%s), `+
			"only through the proxy that HTTPS_PROXY names. Change allow_hosts of the sandbox for another host; its egress log says what was denied.", hostsOf(s.AllowHosts))
	default:
		return `A host was not reached: this sandbox has network "packages", so pip, uv and npm reach the package indexes and nothing else is reached. ` + other
	}
}

func hostsOf(rules []string) string {
	switch {
	case len(rules) == 0:
		return "it is empty"
	case len(rules) > hostsInNote:
		return fmt.Sprintf("%s and %d more", strings.Join(rules[:hostsInNote], ", "), len(rules)-hostsInNote)
	default:
		return strings.Join(rules, ", ")
	}
}

// showsUnreached reports whether a program says in a result that it could not resolve a name or was denied a host.
func showsUnreached(r *farm.Result) bool {
	if e := r.Execute; e != nil {
		return unreached(e.Stdout) || unreached(e.Stderr) ||
			e.Error != nil && (unreached(e.Error.Value) || slices.ContainsFunc(e.Error.Traceback, unreached))
	}
	return r.Command != nil && slices.ContainsFunc(r.Command.Commands, func(c farm.CommandOutcome) bool {
		return unreached(c.Stdout) || unreached(c.Stderr) || c.ExitCode == curlUnresolved && strings.Contains(c.Command, "curl")
	})
}

// unreached reports whether a text has what programs say that do not reach a host.
func unreached(text string) bool {
	return slices.ContainsFunc([]string{
		"Temporary failure in name resolution", "Name or service not known", "No address associated with hostname", // glibc: Python, Rust, psql, …
		"Name does not resolve",                                         // musl
		"Could not resolve host",                                        // curl, git, ssh, R
		"unable to resolve host",                                        // wget
		"getaddrinfo EAI_AGAIN", "getaddrinfo ENOTFOUND", "ENETUNREACH", // Node
		"dial tcp: lookup ",                                                    // Go
		"java.net.UnknownHostException",                                        // Java
		"Network is unreachable",                                               // an address
		"Tunnel connection failed: 403", "CONNECT tunnel failed, response 403", // Python and curl, of the proxy
		"Proxy response (403)", // Node, of the proxy
	}, func(said string) bool { return strings.Contains(text, said) })
}
