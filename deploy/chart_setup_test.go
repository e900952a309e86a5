//go:build chart || kubernetes

package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

const chart = "helm/sandfarm"

// everything are values with which the chart makes all that it can.
const everything = `
image: registry.example.com/farm@sha256:1
images: {python: registry.example.com/python@sha256:2, node: registry.example.com/node@sha256:3}
imagePullSecrets: [pull]
secret: farm
authorities: company
trial: {enabled: true, redis: redis, minio: minio}
sandboxes: {quota: {pods: "100", limits.memory: 64Gi}, seccomp: {enabled: true}}
api: {secret: farm-api}
autoscaling: {enabled: true}
monitoring: {enabled: true}
ingress: {enabled: true, host: farm.example.com, tlsSecret: farm-tls, className: nginx}
settings: {SANDFARM_API_PREVIEW_DOMAIN: preview.example.com, SANDFARM_ENGINE_RUNTIME: gvisor}
nodeSelector: {pool: farm}
tolerations: [{key: farm, operator: Exists}]
`

// tool is a program of deploy/setup.sh.
func tool(t *testing.T, name string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	testbed.Must(t, err)
	path := filepath.Join(cache, "sandfarm", "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run deploy/setup.sh chart", err)
	}
	return path
}

// render makes the manifests of the chart. Its passwords, which are made at random, are left out.
func render(t *testing.T, values string, flags ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	testbed.Must(t, os.WriteFile(file, []byte(values), 0o600))
	out, err := exec.Command(tool(t, "helm"), append([]string{"template", "farm", chart, "--namespace", "farm", "--kube-version", "1.34.0", "--values", file}, flags...)...).CombinedOutput()
	return random.ReplaceAllString(string(out), ""), err
}

var random = regexp.MustCompile(`(?m)^  (REDIS_PASSWORD|SANDFARM_REDIS_URL|SANDFARM_S3_SECRET_KEY|SANDFARM_SECRETS_KEY|SANDFARM_CALLBACK_SECRET): .*\n`)

// moduleDir is the folder of a Go module, which is downloaded.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		t.Fatalf("download %s: %v: %s", module, err, out)
	}
	var got struct{ Dir string }
	testbed.Must(t, json.Unmarshal(out, &got))
	return got.Dir
}
