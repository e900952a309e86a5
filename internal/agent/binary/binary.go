// Package binary holds the agent's own executable, one for each architecture, so that a worker can put it into any
// sandbox. The build creates the files before this package is compiled; without them it compiles, and Agent returns an error.
package binary

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
)

//go:embed all:bin
var files embed.FS

// versionDigits is how many hex digits of the hash identify a version: 48 bits distinguish builds.
const versionDigits = 12

// Agent returns the executable for an architecture, given Go's or the kernel's name (amd64, arm64, x86_64, aarch64), and its
// version: the first 12 hex digits of its SHA-256.
func Agent(arch string) (data []byte, version string, err error) {
	switch strings.ToLower(arch) {
	case "x86_64":
		arch = "amd64"
	case "aarch64":
		arch = "arm64"
	}
	data, err = files.ReadFile("bin/agent-linux-" + arch)
	if err != nil || len(data) == 0 {
		return nil, "", fmt.Errorf("this program does not contain the agent for linux/%s, which every sandbox needs (go install leaves it out): build the program with make build, or download a release archive", arch)
	}
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:])[:versionDigits], nil
}
