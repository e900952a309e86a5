//go:build integration

package main_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// typescriptTimeout bounds one step of the tests of the TypeScript SDK. All take some 25 s together, or two minutes on a busy machine.
const typescriptTimeout = 6 * time.Minute

// TestTypeScriptSDK packs the package, installs it into a new project as npm does, and runs its tests there against a farm with keys.
func TestTypeScriptSDK(t *testing.T) {
	t.Parallel()
	tools, mcp := os.Getenv("SANDFARM_TEST_TYPESCRIPT"), os.Getenv("SANDFARM_TEST_MCP")
	if tools == "" || mcp == "" {
		t.Fatal("SANDFARM_TEST_TYPESCRIPT does not name the tools of the TypeScript SDK, or SANDFARM_TEST_MCP not the folder with Node: run the tests with make, or `deploy/setup.sh typescript` and then `export SANDFARM_TEST_TYPESCRIPT=$(deploy/setup.sh typescript-dir) SANDFARM_TEST_MCP=$(deploy/setup.sh mcp-dir)`")
	}
	f, key := newFarmWithKey(t)
	s := &typescriptSDK{
		t: t, tools: tools, node: filepath.Join(mcp, "node", "bin"), source: t.TempDir(), project: t.TempDir(),
		env: []string{"SANDFARM_URL=" + f.url, "SANDFARM_API_KEY=" + key},
	}
	s.copy("../../sdk/typescript", s.source)
	s.schemaIsCurrent(s.openAPI(f.url, key))
	s.install()
	guide, printed := s.guide("../../docs/sdk-typescript.md")
	for name, content := range map[string]string{
		"guide.ts": guide,
		"old.cjs":  `const { Client, SandfarmError } = require("sandfarm"); new Client(); if (!(new SandfarmError("x") instanceof Error)) process.exit(1);`,
		"tsconfig.json": `{"compilerOptions": {"strict": true, "target": "ES2022", "lib": ["ES2022"], "module": "NodeNext", "noEmit": true, "types": ["node"],
			"skipLibCheck": false, "exactOptionalPropertyTypes": true, "noUncheckedIndexedAccess": true}, "include": ["guide.ts", "tests/*.ts", "commonjs.cts"]}`,
		"commonjs.cts": `import { Client } from "sandfarm"; export const farm: Client = new Client();`,
	} {
		testbed.Must(t, os.WriteFile(filepath.Join(s.project, name), []byte(content), 0o600))
	}
	s.copy("../../sdk/typescript/tests", filepath.Join(s.project, "tests"))
	s.run(s.project, nil, "node", "old.cjs")
	s.run(s.project, nil, "node", filepath.Join(tools, "node_modules", "typescript", "lib", "tsc.js"), "-p", ".")
	testbed.Diff(t, "what the blocks of docs/sdk-typescript.md print", printed, s.run(s.project, nil, "node", "guide.ts"))
	scripts, err := filepath.Glob(filepath.Join(s.project, "tests", "*.test.ts"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("there are no tests: %v", err)
	}
	s.run(s.project, nil, "node", append([]string{"--test", "--test-reporter=spec"}, scripts...)...)
}

// typescriptSDK is a copy of the package, and the project that uses it.
type typescriptSDK struct {
	t                            *testing.T
	tools, node, source, project string
	env                          []string
}

// run runs a program in a folder and returns what it prints on standard output.
func (s *typescriptSDK) run(dir string, in io.Reader, name string, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), typescriptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.node, name), args...)
	var out, failed bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, in, &out, &failed, 5*time.Second
	cmd.Env = append(append(os.Environ(), s.env...), "PATH="+s.node+":"+os.Getenv("PATH"), "HOME="+s.source, "NODE_NO_WARNINGS=1")
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.String(), failed.String())
	}
	return out.String()
}

// copy copies what git has of a folder: not what was built or installed there.
func (s *typescriptSDK) copy(from, to string) {
	s.t.Helper()
	list := exec.CommandContext(s.t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", ".")
	list.Dir = from
	names, err := list.Output()
	if err != nil {
		s.t.Fatalf("list %s: %v", from, err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), content, 0o600)
		}
		testbed.Must(s.t, err)
	}
}

func (s *typescriptSDK) openAPI(url, key string) []byte {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url+"/openapi.json", nil)
	testbed.Must(s.t, err)
	request.Header.Set("Authorization", "Bearer "+key)
	answer, err := http.DefaultClient.Do(request) //nolint:forbidigo // a test
	testbed.Must(s.t, err)
	defer func() { _ = answer.Body.Close() }()
	document, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		s.t.Fatalf("the OpenAPI document: status %d, %v", answer.StatusCode, err)
	}
	return document
}

var comments = regexp.MustCompile(`(?s)\s*/\*\*.*?\*/`)

// schemaIsCurrent makes the types from the farm's document, and compares them with those of the package. Their comments are left to `make verify`.
func (s *typescriptSDK) schemaIsCurrent(document []byte) {
	s.t.Helper()
	testbed.Must(s.t, os.Symlink(filepath.Join(s.tools, "node_modules"), filepath.Join(s.source, "node_modules")))
	made := s.run(s.source, bytes.NewReader(document), "node", "scripts/generate.mjs")
	if kept, err := os.ReadFile(filepath.Join(s.source, "src", "schema.ts")); err != nil || comments.ReplaceAllString(string(kept), "") != comments.ReplaceAllString(made, "") {
		s.t.Errorf("sdk/typescript/src/schema.ts is not what the OpenAPI document of the farm gives: run `make gen` (%v)", err)
	}
}

// install builds and packs the package, and installs the archive without a registry: it has no dependencies.
func (s *typescriptSDK) install() {
	s.t.Helper()
	npm := filepath.Join(s.tools, "npm", "bin", "npm-cli.js")
	s.run(s.source, nil, "node", "scripts/build.mjs")
	s.run(s.source, nil, "node", npm, "pack", "--pack-destination", s.project)
	archives, err := filepath.Glob(filepath.Join(s.project, "sandfarm-*.tgz"))
	if err != nil || len(archives) != 1 {
		s.t.Fatalf("packed %v: %v", archives, err)
	}
	testbed.Must(s.t, os.WriteFile(filepath.Join(s.project, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600))
	s.run(s.project, nil, "node", npm, "install", "--offline", "--no-audit", "--no-fund", archives[0])
	testbed.Must(s.t, os.MkdirAll(filepath.Join(s.project, "node_modules", "@types"), 0o700))
	// What a project with TypeScript has beside it.
	for _, name := range []string{"@types/node", "undici-types"} {
		testbed.Must(s.t, os.Symlink(filepath.Join(s.tools, "node_modules", name), filepath.Join(s.project, "node_modules", name)))
	}
}

var blocks = regexp.MustCompile("(?ms)^```(ts|text)\n(.*?)^```$")

// guide returns the program that the blocks of a page are, and what they print according to it.
func (s *typescriptSDK) guide(path string) (program, printed string) {
	s.t.Helper()
	page, err := os.ReadFile(path)
	testbed.Must(s.t, err)
	for _, block := range blocks.FindAllStringSubmatch(string(page), -1) {
		if block[1] == "ts" {
			program += block[2]
		} else {
			printed += block[2]
		}
	}
	if program == "" || printed == "" {
		s.t.Fatalf("%s has no blocks", path)
	}
	return program, printed
}
