package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// target is a system and an architecture, by Go's names.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "/" + t.arch }

// targets are the systems that archives are made for. Only Linux has the verbs that run a farm.
var targets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"}}

// choose reads a list of targets; an empty one means all.
func choose(list string) ([]target, error) {
	if list == "" {
		return targets, nil
	}
	var chosen []target
	for name := range strings.SplitSeq(list, ",") {
		at := slices.IndexFunc(targets, func(t target) bool { return t.String() == name })
		if at < 0 {
			return nil, fmt.Errorf("no archive is made for %q: the targets are %v", name, targets)
		}
		chosen = append(chosen, targets[at])
	}
	return chosen, nil
}

// program is the name of the program.
func (t target) program() string {
	if t.os == "windows" {
		return "sandfarm.exe"
	}
	return "sandfarm"
}

// extension is that of the archive: Windows can open a zip without other programs.
func (t target) extension() string {
	if t.os == "windows" {
		return ".zip"
	}
	return ".tar.gz"
}

// agents is where package binary looks for the agents that it embeds.
const agents = "internal/agent/binary/bin"

// build builds the stripped program for a target. On Linux it embeds the agent of that architecture, and no other that was
// built in this tree.
func (r *release) build(ctx context.Context, t target, program string) error {
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X main.version=" + r.version, "-o", program}
	env := []string{"GOOS=" + t.os, "GOARCH=" + t.arch, "CGO_ENABLED=0"}
	if t.os == "linux" {
		agent := program + ".agent"
		if err := r.run(ctx, env, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", agent, "./cmd/agent"); err != nil {
			return fmt.Errorf("build the agent for %s: %w", t, err)
		}
		overlay, err := writeOverlay(program+".overlay.json", t.arch, agent)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	if err := r.run(ctx, env, "go", append(args, "./cmd/sandfarm")...); err != nil {
		return fmt.Errorf("build the program for %s: %w", t, err)
	}
	return nil
}

// writeOverlay writes a file that makes the go command see the given agent alone, whatever other ones are in the tree.
func writeOverlay(path, arch, agent string) (string, error) {
	replace := map[string]string{}
	present, err := filepath.Glob(agents + "/agent-*")
	if err != nil {
		return "", fmt.Errorf("look for agents: %w", err)
	}
	for _, other := range present {
		replace[other] = "" // hides the file
	}
	replace[agents+"/agent-linux-"+arch] = agent
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return path, nil
}
