//go:build chart

package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// schema is a part of values.schema.json.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 any                `json:"type"`
	Properties           map[string]*schema `json:"properties"`
	AdditionalProperties any                `json:"additionalProperties"`
	PropertyNames        struct{ Not struct{ Enum []string } }
	Definitions          map[string]*schema `json:"definitions"`
}

func readSchema(t *testing.T) *schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	testbed.Must(t, err)
	s := &schema{}
	testbed.Must(t, json.Unmarshal(text, s))
	return s
}

// at is the schema of a value; nil: there is none.
func (s *schema) at(path []string) *schema {
	found := s
	for _, key := range path {
		next := found.Properties[key]
		if open, ok := found.AdditionalProperties.(map[string]any); next == nil && ok {
			next = &schema{Type: open["type"]}
		}
		if next == nil {
			return nil
		}
		if name, ok := strings.CutPrefix(next.Ref, "#/definitions/"); ok {
			next = s.Definitions[name]
		}
		found = next
	}
	return found
}

var entry = regexp.MustCompile(`^( *)([A-Za-z0-9_./-]+):(?: +([^#].*))?(?: *#.*)?$`)

// leaves are the paths of all values of values.yaml that have a value there.
func leaves(t *testing.T) (list [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	testbed.Must(t, err)
	var path []string
	for line := range strings.Lines(string(text)) {
		found := entry.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if found == nil {
			if trimmed := strings.TrimSpace(line); trimmed != "" && trimmed[0] != '#' {
				t.Fatalf("values.yaml has the line %q, which this test cannot read", trimmed)
			}
			continue
		}
		path = append(slices.Clone(path[:len(found[1])/2]), found[2])
		if strings.TrimSpace(found[3]) != "" {
			list = append(list, path)
		}
	}
	if len(list) < 30 {
		t.Fatalf("values.yaml has only %d values: %v", len(list), list)
	}
	return list
}

// Every value is in the schema, changes what is made, and cannot have another type.
func TestChartUsesEachValue(t *testing.T) {
	t.Parallel()
	s := readSchema(t)
	base, err := render(t, everything)
	if err != nil {
		t.Fatalf("%v: %s", err, base)
	}
	again, _ := render(t, everything)
	testbed.Diff(t, "the same values", base, again)
	for _, path := range leaves(t) {
		one := s.at(path)
		if one == nil {
			t.Errorf("values.schema.json does not have %v", path)
			continue
		}
		kind, _ := one.Type.(string)
		other, ok := map[string]string{"string": `"https://other"`, "boolean": "false", "integer": "7", "array": `[{"key":"other"}]`, "object": `{"other":"1"}`}[kind]
		switch {
		case !ok:
			t.Errorf("%v has the type %v", path, one.Type)
		case path[0] == "imagePullSecrets":
			other = `["other"]`
		case slices.Contains(path, "namespace"):
			other = `"other"`
		case slices.Contains(path, "SANDFARM_WORKER_OUTPUT_SPOOL_MB"), slices.Contains(path, "SANDFARM_INDEX_SPOOL_MB"):
			other = `"7"`
		case path[0] == "images":
			other = `{"other":"1"}`
		}
		wrong := `{"wrong":[1]}`
		if kind == "object" {
			wrong = `"wrong"`
		}
		name := strings.Join(path, ".")
		if len(path) == 3 && path[1] == "annotations" {
			name = strings.Join(path[:2], ".") + "." + strings.ReplaceAll(path[2], ".", `\.`)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := render(t, everything, "--set-json", name+"="+other); err != nil {
				t.Errorf("with %s: %s", other, got)
			} else if got == base {
				t.Errorf("with %s the chart makes what it did without: nothing uses the value", other)
			}
			if got, err := render(t, everything, "--set-json", name+"="+wrong); err == nil {
				t.Errorf("%s is accepted", wrong)
			} else if !strings.Contains(got, "the schema") {
				t.Errorf("%s: %s", wrong, got)
			}
		})
	}
}

// What is missing or wrong is refused, and the message says what to do.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set, says string
	}{
		"NoImage":             {"image=null", "missing property 'image'"},
		"NoImages":            {"images=null", "missing property 'images'"},
		"NoSecret":            {"secret=,trial.enabled=false", "name the Secret with SANDFARM_REDIS_URL"},
		"NoHost":              {"ingress.host=", "name the host of the farm"},
		"NoImageOfRedis":      {"trial.redis=", "trial.redis: name its image"},
		"OwnNamespace":        {"sandboxes.namespace=farm", "a namespace of their own"},
		"Unknown":             {"nonsense=1", "'nonsense' not allowed"},
		"UnknownOfAPart":      {"worker.nonsense=1", "'nonsense' not allowed"},
		"NoSetting":           {"settings.nonsense=1", "invalid propertyName 'nonsense'"},
		"SettingOfTheChart":   {"settings.SANDFARM_ENGINE_KIND=docker", "invalid propertyName 'SANDFARM_ENGINE_KIND'"},
		"SecretInSettings":    {"settings.SANDFARM_REDIS_URL=redis://x", "invalid propertyName 'SANDFARM_REDIS_URL'"},
		"SettingThatIsNoText": {"settings.SANDFARM_WORKER_SLOTS=7", "got number, want string"},
		"ListInAnImage":       {`images.python=a\,b=c`, "does not match pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := render(t, everything, "--set", c.set); err == nil || !strings.Contains(got, c.says) {
				t.Errorf("error %v, want %q: %s", err, c.says, got)
			}
		})
	}
}

var variable = regexp.MustCompile(`SANDFARM_[A-Z0-9_]+`)

// The chart names settings that exist, and values may not replace those that it sets itself.
func TestChartSettings(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/configuration.md")
	testbed.Must(t, err)
	files, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	testbed.Must(t, err)
	for _, file := range append(files, filepath.Join(chart, "values.yaml"), filepath.Join(chart, "values.schema.json")) {
		text, err := os.ReadFile(file)
		testbed.Must(t, err)
		for _, name := range variable.FindAllString(string(text), -1) {
			if !strings.Contains(string(page), "`"+name+"`") && name != "SANDFARM_URL" && name != "SANDFARM_API_KEY" && !strings.HasSuffix(name, "_") {
				t.Errorf("%s: there is no setting %s", file, name)
			}
		}
	}
	refused := readSchema(t).Properties["settings"].PropertyNames.Not.Enum
	manifests, err := render(t, everything)
	testbed.Must(t, err)
	own := manifests[strings.Index(manifests, "kind: ConfigMap"):]
	own, _, _ = strings.Cut(own, "\n---")
	set := map[string]bool{}
	for _, name := range regexp.MustCompile(`(?m)^  (SANDFARM_[A-Z0-9_]+):`).FindAllStringSubmatch(own, -1) {
		set[name[1]] = true
	}
	for _, path := range leaves(t) {
		delete(set, path[len(path)-1])
	}
	for _, name := range []string{"SANDFARM_API_PREVIEW_DOMAIN", "SANDFARM_ENGINE_RUNTIME", "SANDFARM_S3_ENDPOINT", "SANDFARM_S3_PUBLIC_URL"} {
		delete(set, name) // values of this test, and defaults of a trial
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if !slices.Contains(refused, name) {
			t.Errorf("the chart sets %s, and the schema lets settings set it, too", name)
		}
	}
}

// A worker that is taken over can create Pods in the namespace of the sandboxes, which are its only ones: the policy is for all, whatever their labels.
func TestChartClosesTheNetworkOfAllPodsOfSandboxes(t *testing.T) {
	t.Parallel()
	manifests, err := render(t, everything)
	testbed.Must(t, err)
	for _, text := range strings.Split(manifests, "\n---\n") {
		if strings.Contains(text, "\n  name: sandfarm-sandboxes\n") && strings.Contains(text, "kind: NetworkPolicy") {
			if _, spec, _ := strings.Cut(text, "\nspec:\n"); strings.TrimSpace(spec) != "podSelector: {}\n  policyTypes:\n  - Ingress\n  - Egress" {
				t.Errorf("the policy is\n%s", spec)
			}
			return
		}
	}
	t.Error("there is no policy")
}

func TestChartLint(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "values.yaml")
	testbed.Must(t, os.WriteFile(file, []byte(everything), 0o600))
	if out, err := exec.Command(tool(t, "helm"), "lint", "--strict", "--kube-version", "1.34.0", "--values", file, chart).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The manifests have the fields of Kubernetes, and no others. The kinds of other projects are checked in a cluster (TestChartInACluster).
func TestChartKubeconform(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]string{"Everything": everything, "Least": "image: farm\nimages: {python: python}\nsecret: farm\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifests, err := render(t, values)
			if err != nil {
				t.Fatal(manifests)
			}
			check := func(manifests string) (string, error) {
				command := exec.Command(tool(t, "kubeconform"), "-strict", "-summary", "-skip", "PodMonitor,ScaledObject", "-schema-location", schemas(t, manifests)+"/{{.ResourceKind}}{{.KindSuffix}}.json", "-")
				command.Stdin = strings.NewReader(manifests)
				out, err := command.CombinedOutput()
				return string(out), err
			}
			if out, err := check(manifests); err != nil {
				t.Errorf("%v: %s", err, out)
			} else {
				t.Log(out)
			}
			if out, err := check(strings.Replace(manifests, "terminationGracePeriodSeconds:", "terminationGracePeriodSecond:", 1)); err == nil {
				t.Errorf("a wrong field passes: %s", out)
			}
		})
	}
}

// schemas makes JSON schemas for the kinds of manifests, from the OpenAPI document in the source of the Kubernetes that the test cluster has.
func schemas(t *testing.T, manifests string) string {
	t.Helper()
	mod, err := os.ReadFile("kubernetes/go.mod")
	testbed.Must(t, err)
	version := regexp.MustCompile(`k8s.io/kubernetes (v\S+)`).FindStringSubmatch(string(mod))
	if version == nil {
		t.Fatal("kubernetes/go.mod names no version of Kubernetes")
	}
	text, err := os.ReadFile(filepath.Join(moduleDir(t, "k8s.io/kubernetes@"+version[1]), "api/openapi-spec/swagger.json"))
	testbed.Must(t, err)
	var document struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	testbed.Must(t, json.Unmarshal(text, &document))
	for name, d := range document.Definitions {
		if _, open := d["additionalProperties"]; d["properties"] != nil && !open {
			d["additionalProperties"] = false
		}
		if strings.HasSuffix(name, ".IntOrString") || strings.HasSuffix(name, ".Quantity") {
			document.Definitions[name] = map[string]any{"type": []string{"string", "integer", "number"}}
		}
	}
	dir := t.TempDir()
	for name, d := range document.Definitions {
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		for _, one := range kinds {
			k := one.(map[string]any)
			if !strings.Contains(manifests, "kind: "+k["kind"].(string)+"\n") {
				continue
			}
			group, _, _ := strings.Cut(k["group"].(string), ".")
			file := strings.ToLower(fmt.Sprintf("%s-%s-%s.json", k["kind"], group, k["version"]))
			encoded, err := json.Marshal(map[string]any{"$ref": "#/definitions/" + name, "definitions": document.Definitions})
			testbed.Must(t, err)
			testbed.Must(t, os.WriteFile(filepath.Join(dir, strings.Replace(file, "--", "-", 1)), encoded, 0o600))
		}
	}
	return dir
}
