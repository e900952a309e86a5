//go:build integration

package main_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// hosted creates a sandbox that reaches some hosts, and has the test's certificate in its workspace.
func (f *farmProcess) hosted(n *internet, request wire.CreateRequest) wire.Sandbox {
	f.t.Helper()
	network := "allowlist"
	request.Network = &network
	box := f.sandbox(request)
	testbed.Must(f.t, f.Files(box.ID).Write(f.t.Context(), "roots.pem", bytes.NewReader(n.authority)))
	return box
}

// asks is what programs do to reach a URL. Each prints the status and the answer, or what went wrong. URL, ROOTS.
var asks = map[string]string{
	"urllib": `
import http.client, ssl, urllib.error, urllib.request
try:
    with urllib.request.urlopen(URL, timeout=30, context=ssl.create_default_context(cafile=ROOTS)) as a:
        print(a.status, a.read().decode())
except urllib.error.HTTPError as e:
    print(e.code, e.read().decode())
except (OSError, http.client.HTTPException) as e:
    print("failed:", e)
`,
	"requests": `
import requests
try:
    a = requests.get(URL, timeout=30, verify=ROOTS or True)
    print(a.status_code, a.text)
except requests.RequestException as e:
    print("failed:", e)
`,
	"curl": `
import subprocess
a = subprocess.run(["curl", "-sS", "-m", "30", "-w", "\n%{http_code}", *(["--cacert", ROOTS] if ROOTS else []), URL], capture_output=True, text=True)
print("failed:" if a.returncode else "", *reversed(a.stdout.rsplit("\n", 1)), a.stderr)
`,
}

// reach reaches a URL by one of the programs. roots is a file of certificates; "": what the sandbox trusts by itself.
func (f *farmProcess) reach(sandbox, by, url, roots string) string {
	f.t.Helper()
	file := "None"
	if roots != "" {
		file = fmt.Sprintf("%q", roots)
	}
	return strings.TrimSpace(f.run(sandbox, fmt.Sprintf("URL, ROOTS = %q, %s\n%s", url, file, asks[by])).Stdout)
}

// A sandbox of the network allowlist reaches the hosts of its rules by name, with TLS and without, by the programs that people use, and no others.
// Everything is real but the site and the DNS. The attacks of the group egress try other names, addresses, ports and the DNS.
func TestAllowlistInARealSandbox(t *testing.T) {
	t.Parallel()
	n := newInternet(t)
	n.pypi.wheel("served-here", "1.0")
	f := n.farm()
	box := f.hosted(n, wire.CreateRequest{AllowHosts: []string{"api.good.test", "GET plain.good.test", "index.good.test"}}).ID
	for by := range asks {
		for _, url := range []string{"http://api.good.test/", "https://api.good.test/", "http://plain.good.test/"} {
			if got := f.reach(box, by, url, "roots.pem"); !strings.HasPrefix(got, "200 GET ") || !strings.Contains(got, strings.Split(url, "/")[2]) {
				t.Errorf("%s of %s: %q", by, url, got)
			}
		}
		n.questions()
		if got := f.reach(box, by, "https://other.good.test/", "roots.pem"); !strings.Contains(got, "403") {
			t.Errorf("%s of a host that is not in the list: %q", by, got)
		}
		if asked := n.questions(); len(asked) > 0 {
			t.Errorf("%s: the DNS was asked for %q, which no rule allows", by, asked)
		}
	}
	for _, v := range n.visited() {
		if v.host != "api.good.test" && v.host != "plain.good.test" {
			t.Errorf("the site was asked as %s", v.host)
		}
	}
	if got := f.run(box, `
import subprocess
a = subprocess.run(["pip", "install", "--no-deps", "--target", "/workspace/by-pip", "--cert", "roots.pem", "--index-url", "https://index.good.test/simple/", "served-here"], capture_output=True, text=True)
print(a.returncode, a.stdout, a.stderr)
import sys; sys.path.insert(0, "/workspace/by-pip")
import served_here
print(served_here.__version__)
`); !strings.HasPrefix(got.Stdout, "0 ") || !strings.Contains(got.Stdout, "\n1.0\n") {
		t.Errorf("pip: %s", got.Stdout)
	}
	verdicts := map[string]int{}
	for _, want := range []string{"allowed api.good.test", "allowed plain.good.test", "allowed index.good.test", "denied other.good.test"} {
		until(t.Context(), t, "the log has "+want, time.Minute, func() bool {
			for entry, err := range f.Egress(t.Context(), box, "") {
				testbed.Must(t, err)
				verdicts[entry.Verdict+" "+entry.Host]++
			}
			return verdicts[want] > 0
		})
	}
	// The list changes while the sandbox runs.
	hosts := []string{"other.good.test"}
	_, err := f.Update(t.Context(), box, wire.UpdateRequest{AllowHosts: &hosts})
	testbed.Must(t, err)
	until(t.Context(), t, "the new list applies", time.Minute, func() bool {
		return strings.HasPrefix(f.reach(box, "requests", "https://other.good.test/", "roots.pem"), "200 ")
	})
	if got := f.reach(box, "requests", "https://api.good.test/", "roots.pem"); !strings.Contains(got, "403") {
		t.Errorf("a host that is not in the list any more: %q", got)
	}
}

// The header of a secret arrives at its host and at no other, by the programs that people use and without options for its certificate.
// Its value is nowhere in the sandbox, nor in what the engine, the logs and the records have.
func TestSecretsInARealSandbox(t *testing.T) {
	t.Parallel()
	n := newInternet(t)
	f := n.farm()
	value := newValue()
	box := f.hosted(n, wire.CreateRequest{
		AllowHosts: []string{"api.good.test", "other.good.test"},
		Secrets:    map[string]wire.Secret{"API_TOKEN": {Host: "api.good.test", Header: tokenHeader + ": Bearer", Value: value}},
	}).ID
	for by := range asks {
		for _, url := range []string{"https://api.good.test/", "http://api.good.test/"} {
			if got := f.reach(box, by, url, ""); !strings.HasPrefix(got, "200 GET api.good.test") {
				t.Errorf("%s of %s: %q", by, url, got)
			}
		}
		if got := f.reach(box, by, "https://other.good.test/", "roots.pem"); !strings.HasPrefix(got, "200 ") {
			t.Errorf("%s of a host without a secret: %q", by, got)
		}
		if got := f.reach(box, by, "https://api.good.test/echo", ""); strings.Contains(got, value) || !strings.Contains(got, "failed:") {
			t.Errorf("%s of a host that repeats the secret: %q", by, got)
		}
	}
	visits := n.visited()
	if len(visits) != 4*len(asks) {
		t.Errorf("the site got %d requests: %+v", len(visits), visits)
	}
	for _, v := range visits {
		got, want := v.header.Values(tokenHeader), []string{"Bearer " + value}
		if v.host != "api.good.test" {
			want = nil
		}
		if !v.tls || !slices.Equal(got, want) {
			t.Errorf("%s of %s has the header %q, want %q; TLS: %t", v.path, v.host, got, want, v.tls)
		}
	}
	f.nowhere(box, value)
	// The value changes while the sandbox runs.
	rotated := newValue()
	_, err := f.Update(t.Context(), box, wire.UpdateRequest{Secrets: map[string]wire.NewSecret{"API_TOKEN": {Value: rotated}}})
	testbed.Must(t, err)
	until(t.Context(), t, "requests have the new value", time.Minute, func() bool {
		f.reach(box, "urllib", "https://api.good.test/", "")
		got := n.visited()
		return len(got) == 1 && slices.Equal(got[0].header.Values(tokenHeader), []string{"Bearer " + rotated})
	})
	f.nowhere(box, rotated)
	names := 0
	until(t.Context(), t, "the log names the secret", time.Minute, func() bool {
		for entry, err := range f.Egress(t.Context(), box, "") {
			testbed.Must(t, err)
			if slices.Equal(entry.Secrets, []string{"API_TOKEN"}) {
				names++
			}
		}
		return names > 0
	})
}

// newValue makes the value of a secret that occurs nowhere else.
func newValue() string { return "sk-" + rand.Text() }

// forms are a value as it is, and as it may be encoded.
func forms(value string) []string {
	raw := base64.StdEncoding.EncodeToString([]byte(value))
	return []string{value, strings.TrimRight(raw, "="), hex.EncodeToString([]byte(value))}
}

// nowhere checks that the value of a secret is in no place but its host: not in the sandbox, its files and its processes, not in what the
// engine shows of the container, not in records, logs, results and artifacts, and not in the data of the farm.
func (f *farmProcess) nowhere(box, value string) {
	f.t.Helper()
	has := func(place, text string) {
		for _, form := range forms(value) {
			if strings.Contains(text, form) {
				f.t.Errorf("%s has the value of the secret", place)
			}
		}
	}
	// The program that searches does not contain what it looks for, nor do its arguments.
	found := f.run(box, fmt.Sprintf(`
import os, sys
wanted = [bytes(b ^ 1 for b in bytes.fromhex(h)) for h in %q.split()]
def search(path):
    try:
        with open(path, "rb") as f:
            tail = b""
            while part := f.read(1 << 20):
                if any(w in tail + part for w in wanted):
                    print("found in", path)
                    return
                tail = part[-200:]
    except OSError:
        pass
files = 0
for top in ("/workspace", "/home", "/run", "/tmp", "/var", "/etc", "/opt/sandfarm", "/dev/shm"):
    for folder, _, names in os.walk(top):
        for name in names:
            if os.path.isfile(os.path.join(folder, name)):
                files += 1
                search(os.path.join(folder, name))
processes = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    processes += 1
    for name in ("environ", "cmdline", "maps"):
        search(f"/proc/{pid}/{name}")
print("searched", files > 10 and processes >= 2)
open("report.txt", "w").write(repr(dict(os.environ)))
print(dict(os.environ))
`, strings.Join(masked(value), " ")))
	if !strings.Contains(found.Stdout, "searched True") || strings.Contains(found.Stdout, "found in") {
		f.t.Errorf("in the sandbox: %.2000s", found.Stdout)
	}
	if !strings.Contains(found.Stdout, "added-by-the-proxy") {
		f.t.Errorf("the sandbox has no placeholder: %.2000s", found.Stdout)
	}
	has("the output", found.Stdout)
	for _, artifact := range found.Artifacts {
		content, err := f.Download(f.t.Context(), artifact)
		testbed.Must(f.t, err)
		var text bytes.Buffer
		_, _ = text.ReadFrom(content)
		_ = content.Close()
		has("the artifact "+artifact.Path, text.String())
	}
	if len(found.Artifacts) == 0 {
		f.t.Error("there is no artifact")
	}
	ids, err := exec.Command("docker", "ps", "-aq", "--filter", "label=sandfarm.sandbox="+box).Output()
	if err != nil || len(bytes.Fields(ids)) != 1 {
		f.t.Fatalf("the containers of the sandbox: %q, %v", ids, err)
	}
	inspected, err := exec.Command("docker", "inspect", strings.TrimSpace(string(ids))).Output()
	if err != nil || !bytes.Contains(inspected, []byte(box)) {
		f.t.Fatalf("inspect: %v", err)
	}
	has("docker inspect", string(inspected))
	for _, path := range []string{"/v1/sandboxes/" + box, "/v1/sandboxes", "/v1/jobs", "/v1/sandboxes/" + box + "/egress", "/metrics"} {
		has(path, string(download(f.t, f.url+path)))
	}
	for job, err := range f.Jobs(f.t.Context(), client.JobFilter{SandboxID: box}) {
		testbed.Must(f.t, err)
		has("the job "+job.ID, fmt.Sprintf("%+v %+v", job, job.Result))
		has("its request", string(download(f.t, f.url+"/v1/jobs/"+job.ID+"/request")))
	}
	has("the log of the farm", f.out.String())
	files := 0
	err = filepath.WalkDir(f.data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // a file may go away meanwhile
		}
		text, err := os.ReadFile(path)
		if err == nil {
			files++
			has("the file "+path, string(text))
		}
		return nil
	})
	if err != nil || files == 0 {
		f.t.Errorf("the data of the farm: %d files, %v", files, err)
	}
}

// masked are the forms of a value so that a program which has them does not contain the value.
func masked(value string) (out []string) {
	for _, form := range forms(value) {
		bits := []byte(form)
		for i := range bits {
			bits[i] ^= 1
		}
		out = append(out, hex.EncodeToString(bits))
	}
	return out
}
