package enginetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// GPUs is a fake of NVIDIA's hook: Options.Path of the engine must name its directory. The hook gives a container no devices, and records
// which devices the container should have.
type GPUs struct {
	Dir string

	log string
}

// Hooked is one container that was started with devices.
type Hooked struct {
	Container string
	At        time.Time // when, by the machine's clock
	Devices   []string  // of NVIDIA_VISIBLE_DEVICES; nil when it was not set
}

// NewGPUs creates a hook.
func NewGPUs(t *testing.T) *GPUs {
	t.Helper()
	dir := t.TempDir()
	g := &GPUs{Dir: dir, log: filepath.Join(dir, "log")}
	// The state of the container is on standard input: its id, and the bundle with its configuration. A short line is
	// written at once, however many hooks write.
	script := fmt.Sprintf(`#!/bin/sh
state=$(cat)
id=$(printf %%s "$state" | sed 's/.*"id":"\([^"]*\)".*/\1/')
bundle=$(printf %%s "$state" | sed 's/.*"bundle":"\([^"]*\)".*/\1/')
devices=$(tr '[]' '\n\n' <"$bundle/config.json" | tr ',' ' ' | tr '"' '\n' | sed -n 's/^NVIDIA_VISIBLE_DEVICES=//p' | tail -n 1 | tr ' ' ',')
echo "$1 $id ${devices:-none} $(date +%%s%%N)" >>%s
`, g.log)
	if err := os.WriteFile(filepath.Join(dir, "nvidia-container-runtime-hook"), []byte(script), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if err := os.WriteFile(g.log, nil, 0o644); err != nil { //nolint:gosec // a log of a test
		t.Fatal(err)
	}
	return g
}

// Seen lists the containers that were started with devices, in the order of their starts.
func (g *GPUs) Seen(t *testing.T) (all []Hooked) {
	t.Helper()
	text, err := os.ReadFile(g.log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 4 || words[0] != "prestart" {
			t.Fatalf("the hook wrote %q", line)
		}
		nanos, err := strconv.ParseInt(words[3], 10, 64)
		if err != nil {
			t.Fatalf("the hook wrote %q: %v", line, err)
		}
		h := Hooked{Container: words[1], At: time.Unix(0, nanos)}
		if words[2] != "none" {
			h.Devices = strings.Split(words[2], ",")
		}
		all = append(all, h)
	}
	return all
}
