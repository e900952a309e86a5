package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sent is a call that the engine's client made.
type sent struct {
	path, name string
	body       []byte
}

// recorder is an Engine whose calls are recorded, with the facts of an engine of 8 cores.
func recorder(t testing.TB) (*Engine, func() sent) {
	t.Helper()
	var last sent
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost {
			last = sent{path: r.URL.Path, name: r.URL.Query().Get("name"), body: body}
		}
		w.Header().Set("Api-Version", "1.41")
		_, _ = io.WriteString(w, `{"Id":"made","NCPU":8}`)
	}))
	t.Cleanup(fake.Close)
	e, err := New(Config{Host: "tcp://" + strings.TrimPrefix(fake.URL, "http://"), Namespace: "farm"})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	e.cpus = 8
	return e, func() sent { return last }
}

// anySpec draws what a worker may ask for.
func anySpec(t *rapid.T) sandboxSpec {
	text := rapid.StringMatching(`[A-Za-z0-9_./= é"<&-]{0,20}`)
	s := sandboxSpec{UID: rapid.IntRange(1, 1<<31-1).Draw(t, "uid"), ContainerSpec: farm.ContainerSpec{
		SandboxID: farm.NewID(farm.SandboxPrefix), Tenant: text.Draw(t, "tenant"), Node: text.Draw(t, "node"),
		Labels: rapid.MapOf(rapid.StringMatching(`sandfarm\.x[a-z]{1,6}`), text).Draw(t, "labels"),
		Image:  rapid.StringMatching(`[a-z]{1,8}:[a-z]{1,8}`).Draw(t, "image"), Command: append([]string{"/sandfarm/agent"}, rapid.SliceOf(text).Draw(t, "command")...),
		Env:     rapid.MapOf(rapid.StringMatching(`[A-KMO-Z][A-KM-Z0-9_]{0,8}`), text).Draw(t, "env"),
		Runtime: rapid.SampledFrom([]string{"", "runsc", "other"}).Draw(t, "runtime"),
		Resources: farm.Resources{
			MemoryMB: rapid.IntRange(0, 65536).Draw(t, "memory"), CPUs: rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0.01, 64)).Draw(t, "cpus"),
			PIDs: rapid.IntRange(0, 1024).Draw(t, "pids"), DiskMB: rapid.IntRange(0, 65536).Draw(t, "disk"),
		},
		Generation: rapid.IntRange(0, 3).Draw(t, "generation"), Agent: "farm-agent-1",
	}}
	if rapid.Bool().Draw(t, "deadline") {
		s.Deadline = time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "at"), 0)
	}
	if n := rapid.IntRange(0, 2).Draw(t, "gpus"); n > 0 {
		s.GPUs = []string{"GPU-0", "GPU-1"}[:n]
		if rapid.Bool().Draw(t, "cdi") {
			s.CDI = []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}[:n]
		}
	}
	return s
}

// Whatever a worker may ask for, the Checker accepts what the engine's client sends, and makes the same document of it.
func TestCheckerAcceptsWhatIsSent(t *testing.T) {
	t.Parallel()
	e, last := recorder(t)
	c := e.NewChecker(Rules{Runtimes: []string{"runsc", "other"}})
	e.seccomp, e.seccompGPU = `{"a":1}`, `{"b":2}` // the profiles are long, and not what is drawn
	rapid.Check(t, func(t *rapid.T) {
		e.nvidia, e.timestamps = rapid.Bool().Draw(t, "nvidia"), rapid.Bool().Draw(t, "timestamps")
		e.standard = rapid.SampledFrom([]string{"", "runc", "runsc"}).Draw(t, "standard")
		e.parent.name = rapid.SampledFrom([]string{"", "/sandboxes-farm", "sandboxes_farm.slice"}).Draw(t, "parent")
		s := anySpec(t)
		if _, err := e.createOnce(t.Context(), s, 8); err != nil {
			t.Fatal(err)
		}
		got, err := c.Create(t.Context(), last().name, last().body)
		if err != nil {
			t.Fatal(err)
		}
		if got.Image != s.Image || got.Volume != s.Agent || !bytes.Equal(got.Body, bytes.TrimSpace(last().body)) {
			t.Fatalf("made another document, or image %q and volume %q", got.Image, got.Volume)
		}
		r := s.resources(8)
		if err := e.Update(t.Context(), "x", "runc", r); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Update(last().body); err != nil {
			t.Fatal(err)
		}
	})
}

// Names of CDI are those of single GPUs: other devices of the host may come with mounts and programs that run as root.
func TestCheckerRefusesOtherDevices(t *testing.T) {
	t.Parallel()
	e, last := recorder(t)
	c := e.NewChecker(Rules{})
	const gpu = "nvidia.com/gpu=0"
	spec := sandboxSpec{UID: 1000, CDI: []string{gpu}, ContainerSpec: farm.ContainerSpec{
		SandboxID: farm.NewID(farm.SandboxPrefix), Image: "python:3", Command: []string{"/sandfarm/agent"}, Agent: "farm-agent-1", GPUs: []string{"GPU-0"},
	}}
	_, err := e.createOnce(t.Context(), spec, 8)
	testbed.Must(t, err)
	for _, name := range []string{gpu, "nvidia.com/gpu=GPU-0", "nvidia.com/gpu=all", "management.nvidia.com/gpu=0", "nvidia.com/gds=all", "vendor.com/class=name"} {
		_, err := c.Create(t.Context(), last().name, bytes.ReplaceAll(last().body, []byte(gpu), []byte(name)))
		if accepted := strings.HasPrefix(name, gpu) || name == "nvidia.com/gpu=GPU-0"; (err == nil) != accepted {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// gVisor reads a sandbox's limits at its start: a sandbox of the pool with others is not used. The runtime of the sandbox counts, and only without
// one that of the Engine.
func TestUpdateIsRefusedUnderGVisor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		engine, sandbox string
		refused         bool
	}{{"runsc", "", true}, {"", "runsc", true}, {"runc", "runsc", true}, {"runsc", "runsc", true}, {"runsc", "runc", false}, {"", "", false}} {
		e, last := recorder(t)
		e.runtime = c.engine
		err := e.Update(t.Context(), "x", c.sandbox, farm.Resources{PIDs: 64})
		if refused := farm.CodeOf(err) == farm.CodeConflict; refused != c.refused || (last().path == "") != c.refused || !refused && err != nil {
			t.Errorf("engine %q, sandbox %q: %v; the engine got %q", c.engine, c.sandbox, err, last().path)
		}
	}
}

// The container whose network a build shares is that of this package, with the profile of a sandbox and one command, and only where images are built.
func TestCheckerAcceptsTheNetworkOfABuild(t *testing.T) {
	t.Parallel()
	e, last := recorder(t)
	e.parent.name = "/sandboxes-farm"
	command := []string{"/sandfarm/agent", "init", "--proxy"}
	c := e.NewChecker(Rules{Build: command})
	_, err := e.CreateBuildNetwork(t.Context(), "python:1", "farm-agent-v1", command)
	testbed.Must(t, err)
	good := last().body
	wantRefused(t, "where no images are built", func() error { _, err := e.NewChecker(Rules{}).Create(t.Context(), "", good); return err })
	got, err := c.Create(t.Context(), "", good)
	if err != nil || got.Image != "python:1" || got.Volume != "farm-agent-v1" || !bytes.Equal(got.Body, bytes.TrimSpace(good)) {
		t.Errorf("%+v, %v", got, err)
	}
	for what, change := range map[string]func(*container.CreateRequest){
		"network":  func(r *container.CreateRequest) { r.HostConfig.NetworkMode = "host" },
		"runtime":  func(r *container.CreateRequest) { r.HostConfig.Runtime = "other" },
		"memory":   func(r *container.CreateRequest) { r.HostConfig.Memory = 1 << 40 },
		"rights":   func(r *container.CreateRequest) { r.HostConfig.CapAdd = []string{"NET_ADMIN"} },
		"user":     func(r *container.CreateRequest) { r.User = "0:0" },
		"writable": func(r *container.CreateRequest) { r.HostConfig.Mounts[0].ReadOnly = false },
		"volume":   func(r *container.CreateRequest) { r.HostConfig.Mounts[0].Source = "other-agent-v1" },
		"command":  func(r *container.CreateRequest) { r.Entrypoint, r.Cmd = nil, nil },
		"program":  func(r *container.CreateRequest) { r.Entrypoint = []string{"python3"} },
		"argument": func(r *container.CreateRequest) { r.Cmd = append(r.Cmd, "x") },
		"seccomp":  func(r *container.CreateRequest) { r.HostConfig.SecurityOpt = r.HostConfig.SecurityOpt[:1] },
		"masks":    func(r *container.CreateRequest) { r.HostConfig.MaskedPaths = nil },
		"cgroup":   func(r *container.CreateRequest) { r.HostConfig.CgroupParent = "/" },
		"mount":    func(r *container.CreateRequest) { r.HostConfig.Mounts = nil },
		"sandbox":  func(r *container.CreateRequest) { r.Labels[LabelSandbox] = "sbx_1" },
	} {
		var r container.CreateRequest
		testbed.Must(t, json.Unmarshal(good, &r))
		change(&r)
		body, err := json.Marshal(r)
		testbed.Must(t, err)
		wantRefused(t, what, func() error { _, err := c.Create(t.Context(), "", body); return err })
	}
	wantRefused(t, "name", func() error { _, err := c.Create(t.Context(), "farm-sbx_1", good); return err })
}

func TestCheckerAcceptsHelpersVolumesAndExecs(t *testing.T) {
	t.Parallel()
	e, last := recorder(t)
	c := e.NewChecker(Rules{})
	for name, helper := range map[string]container.CreateRequest{
		"": e.nvidiaHelper("farm/probe:1"), "-": e.quotaHelper("farm/probe:1"), "farm-preload": e.preloadHelper("python:1"), "farm-agent-v1-fill": e.fillHelper("python:1", "farm-agent-v1"),
	} {
		name = strings.TrimLeft(name, "-")
		_, err := e.createHelper(t.Context(), name, helper)
		testbed.Must(t, err)
		_, err = c.Create(t.Context(), name, last().body)
		testbed.Check(t, err == nil, "helper %q: %v", name, err)
		if name != "" { // the name is that of a sandbox, or missing
			for _, wrong := range []string{"", "farm-agent-v2-fill", "farm-sbx_1"} {
				wantRefused(t, "helper named "+wrong, func() error { _, err := c.Create(t.Context(), wrong, last().body); return err })
			}
		}
	}
	_, _ = e.NodeID(t.Context()) // the answer of the fake has no labels
	if _, err := c.Volume(last().body); err != nil {
		t.Errorf("volume of the node: %v", err)
	}
	testbed.Must(t, e.Note(t.Context(), "sbx_1", "acme", map[string]string{"sandfarm.record": "{}"}))
	if _, err := c.Volume(last().body); err != nil {
		t.Errorf("note: %v", err)
	}
	_, err := e.ensureVolume(t.Context(), "farm-agent-v1-complete", map[string]string{LabelRole: RoleAgent, LabelFill: "x"})
	testbed.Must(t, err)
	if _, err := c.Volume(last().body); err != nil {
		t.Errorf("volume of the agent: %v", err)
	}
	body, _ := json.Marshal(execOptions("65533:65533", []string{"/sandfarm/agent", "dial"}))
	call, err := c.Exec(body)
	testbed.Check(t, err == nil && call.User == "65533:65533" && len(call.Command) == 2 && bytes.Equal(call.Body, body), "exec: %+v, %v", call, err)
	_, err = c.ExecStart([]byte(`{"Detach":false,"Tty":false}`))
	testbed.Check(t, err == nil, "start of an exec: %v", err)
}

func wantRefused(t testing.TB, what string, call func() error) {
	t.Helper()
	testbed.Diff(t, fmt.Sprintf("%s: code", what), farm.CodeInvalid, farm.CodeOf(call()))
}

// free are the fields that a worker chooses. All others follow from them.
var free = []string{
	"Env", "Cmd", "Entrypoint", "Image", "HostConfig.NanoCpus", "HostConfig.PidsLimit", "HostConfig.Runtime",
	"Labels.sandfarm.tenant", "Labels.sandfarm.node", "Labels.sandfarm.deadline", "Labels.sandfarm.record",
}

// isFree reports whether a worker chooses a field of this path, or one that holds it.
func isFree(path string) bool {
	return slices.ContainsFunc(free, func(f string) bool { return path == f || strings.HasPrefix(path, f+"[") })
}

// accepted is a body that the Checker accepts.
func accepted(t *testing.T) (*Checker, string, []byte) {
	t.Helper()
	e, last := recorder(t)
	e.seccompGPU = "{}" // the changes are many, and the profile is long
	s := spec()
	s.SandboxID, s.Agent, s.Env = farm.NewID(farm.SandboxPrefix), "farm-agent-1", map[string]string{"COLOUR": "blue"}
	s.Labels, s.Deadline = map[string]string{"sandfarm.record": "{}"}, time.Unix(2_000_000_000, 0)
	s.GPUs = []string{"GPU-0"}
	_, err := e.createOnce(t.Context(), s, 8)
	testbed.Must(t, err)
	c := e.NewChecker(Rules{})
	_, err = c.Create(t.Context(), last().name, last().body)
	testbed.Must(t, err)
	return c, last().name, last().body
}

// Each field of the document, changed, removed or misspelled, is refused unless a worker chooses it; and so is a field that is added
// anywhere.
func TestCheckerRefusesEachChangedField(t *testing.T) {
	t.Parallel()
	c, name, body := accepted(t)
	root, err := parseJSON(body)
	testbed.Must(t, err)
	tried := 0
	try := func(what, path string) {
		t.Helper()
		tried++
		changed, err := json.Marshal(root)
		testbed.Must(t, err)
		_, err = c.Create(t.Context(), name, changed)
		testbed.Check(t, err != nil || isFree(path), "%s %s: accepted", what, path)
	}
	var walk func(path string, value any, set func(any))
	walk = func(path string, value any, set func(any)) {
		for _, other := range []any{nil, true, false, json.Number("0"), json.Number("1"), json.Number("-1"), "", "0", "host", []any{}, []any{"x"}, map[string]any{}, map[string]any{"x": "y"}} {
			if !reflect.DeepEqual(other, value) {
				set(other)
				try("changed", path)
			}
		}
		set(value)
		switch value := value.(type) {
		case map[string]any:
			value["Privileged2"] = true
			try("added to", path)
			delete(value, "Privileged2")
			for key, inner := range value {
				at := strings.TrimPrefix(path+"."+key, ".")
				delete(value, key)
				try("removed", at)
				value[strings.ToLower(key)+strings.ToUpper(key)] = inner
				try("renamed", at)
				delete(value, strings.ToLower(key)+strings.ToUpper(key))
				if lower := strings.ToLower(key); lower != key {
					value[lower] = inner
					try("misspelled", at+" ")
					delete(value, lower)
				}
				value[key] = inner
				walk(at, inner, func(v any) { value[key] = v })
			}
		case []any:
			for i := range value {
				inner := value[i]
				walk(path+"["+string(rune('0'+i%10))+"]", inner, func(v any) { value[i] = v })
			}
		}
	}
	walk("", root, func(v any) { root = v })
	testbed.Check(t, tried >= 1000, "only %d changes were tried", tried)
}

// Each field that the engine's API knows, set by itself, is refused unless a worker chooses it.
func TestCheckerRefusesEachFieldOfTheAPI(t *testing.T) {
	t.Parallel()
	c, name, body := accepted(t)
	seen := 0
	for _, path := range fieldsOf(reflect.TypeFor[container.CreateRequest](), nil, 0) {
		var request container.CreateRequest
		testbed.Must(t, json.Unmarshal(body, &request))
		field := reflect.ValueOf(&request).Elem()
		for _, index := range path {
			if field.Kind() == reflect.Pointer {
				if field.IsNil() {
					field.Set(reflect.New(field.Type().Elem()))
				}
				field = field.Elem()
			}
			field = field.Field(index)
		}
		if !change(field) {
			continue
		}
		changed, err := json.Marshal(request)
		if err != nil || bytes.Equal(changed, bytes.TrimSpace(body)) {
			continue // the field is not sent
		}
		seen++
		if _, err := c.Create(t.Context(), name, changed); err == nil {
			before, _ := parseJSON(body)
			after, _ := parseJSON(changed)
			where, _ := difference("", after, before)
			testbed.Check(t, isFree(where), "%s: accepted", where)
		}
	}
	testbed.Check(t, seen >= 80, "only %d fields were tried", seen)
}

// fieldsOf lists the paths of all exported fields of a struct and its structs.
func fieldsOf(typ reflect.Type, at []int, depth int) (all [][]int) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || depth > 4 {
		return nil
	}
	for i := range typ.NumField() {
		if field := typ.Field(i); field.IsExported() {
			path := append(slices.Clone(at), i)
			all = append(append(all, path), fieldsOf(field.Type, path, depth+1)...)
		}
	}
	return all
}

// change gives a field another value that is not empty.
func change(field reflect.Value) bool {
	switch field.Kind() {
	case reflect.Bool:
		field.SetBool(!field.Bool())
	case reflect.String:
		field.SetString(field.String() + "host")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		field.SetInt(field.Int() + 1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		field.SetUint(field.Uint() + 1)
	case reflect.Slice:
		field.Set(reflect.Append(field, reflect.Zero(field.Type().Elem())))
	case reflect.Map:
		if field.IsNil() {
			field.Set(reflect.MakeMap(field.Type()))
		}
		field.SetMapIndex(reflect.ValueOf("x").Convert(field.Type().Key()), reflect.Zero(field.Type().Elem()))
	case reflect.Pointer:
		if field.IsNil() {
			field.Set(reflect.New(field.Type().Elem()))
			change(field.Elem())
		} else {
			change(field.Elem())
		}
	default:
		return false
	}
	return true
}
