package workertest

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/worker/node"
)

// Engine is a fake of a Docker engine. The name of a container is "test-" and the id of its sandbox.
type Engine struct {
	*httptest.Server
	mu         sync.Mutex
	containers map[string]bool // running
	removed    []string
	broken     bool // removals fail
	image      string
	memory     int // MiB of the host
	cores      int

	labels  map[string]map[string]string // of containers, where they are not the usual ones
	notes   map[string]map[string]string // labels of volumes
	updates []string                     // bodies of changes of limits

	checkpoints checkpoints
	creates     *creates // nil: no container can be created

	drops map[string]int // how many of the next requests to a path get no answer
}

// Drop breaks the connection of the next n requests to a path, such as "images/json".
func (e *Engine) Drop(path string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drops[path] = n
}

// Dropped reports whether all requests that Drop announced have come.
func (e *Engine) Dropped(path string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.drops[path] == 0
}

func newEngine(t *testing.T) *Engine {
	e := &Engine{containers: map[string]bool{}, image: "python", memory: 1 << 20, cores: 64, labels: map[string]map[string]string{}, notes: map[string]map[string]string{}, drops: map[string]int{}, checkpoints: checkpoints{of: map[string]bool{}}}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

// SetImage names the image that the engine has. Call it before the engine is used.
func (e *Engine) SetImage(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.image = name
}

// Put adds the container of a sandbox.
func (e *Engine) Put(sandbox string, running bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers["test-"+sandbox] = running
}

// Has reports whether a sandbox has a container.
func (e *Engine) Has(sandbox string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.containers["test-"+sandbox]
	return ok
}

// BreakRemovals makes removals fail, or succeed again.
func (e *Engine) BreakRemovals(broken bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken = broken
}

// CPUSeconds is what every container has used.
const CPUSeconds = int64(7)

// ServeHTTP answers as Docker does.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.awaitCreate(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Api-Version", "1.47")
	w.Header().Set("Content-Type", "application/json")
	_, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(path, "containers/"), "/json"), "/update")
	name = strings.TrimSuffix(name, "/stats")
	name = checkpointed(name)
	if e.drops[path] > 0 {
		e.drops[path]--
		panic(http.ErrAbortHandler)
	}
	running, ok := e.containers[name]
	labels := func(name string) map[string]string {
		if own, ok := e.labels[name]; ok {
			return own
		}
		return map[string]string{engine.LabelNamespace: "test", engine.LabelSandbox: strings.TrimPrefix(name, "test-"), engine.LabelTenant: Tenant, engine.LabelNode: Node}
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/_ping"):
		_, _ = w.Write([]byte("OK"))
	case path == "info":
		_ = json.NewEncoder(w).Encode(map[string]any{"MemTotal": e.memory << 20, "NCPU": e.cores})
	case path == "images/json":
		_ = json.NewEncoder(w).Encode([]any{map[string]any{"Id": "sha256:1", "RepoTags": []string{"sandfarm/" + e.image + ":1"}, "Labels": map[string]string{engine.LabelImage: e.image}}})
	case path == "images/sha256:1/json":
		_, _ = w.Write([]byte(`{"Id":"sha256:1"}`))
	case path == "containers/json":
		list := []any{}
		for name, running := range e.containers {
			if !hasLabels(labels(name), r.URL.Query().Get("filters")) {
				continue
			}
			state := map[bool]string{true: "running", false: "exited"}[running]
			list = append(list, map[string]any{"Id": name, "Names": []string{"/" + name}, "Labels": labels(name), "State": state, "HostConfig": map[string]any{}})
		}
		_ = json.NewEncoder(w).Encode(list)
	case path == "containers/create" && e.creates != nil:
		e.create(w, r)
	case strings.HasPrefix(path, "volumes"):
		e.volume(w, r, strings.TrimPrefix(strings.TrimPrefix(path, "volumes"), "/"))
	case r.Method == http.MethodDelete && e.broken:
		http.Error(w, `{"message":"device or resource busy"}`, http.StatusInternalServerError)
	case !ok:
		http.Error(w, `{"message":"No such container"}`, http.StatusNotFound)
	case strings.Contains(path, "/checkpoints"), strings.HasSuffix(path, "/start") && r.URL.Query().Has("checkpoint"):
		e.checkpoint(w, r, name)
	case r.Method == http.MethodDelete:
		delete(e.containers, name)
		delete(e.checkpoints.of, name)
		e.removed = append(e.removed, name)
		w.WriteHeader(http.StatusNoContent)
	case strings.HasSuffix(path, "/json"):
		if !running && e.checkpoints.late > 0 {
			e.checkpoints.late, running = e.checkpoints.late-1, true
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"Id": name, "Created": time.Now().Format(time.RFC3339Nano), "State": map[string]any{"Running": running, "ExitCode": 137, "OOMKilled": !running},
			"HostConfig": map[string]any{}, "Config": map[string]any{"Labels": labels(name)},
		})
	case strings.HasSuffix(path, "/stats"):
		_ = json.NewEncoder(w).Encode(map[string]any{
			"id": name, "cpu_stats": map[string]any{"cpu_usage": map[string]any{"total_usage": CPUSeconds * int64(time.Second)}},
			"memory_stats": map[string]any{"usage": 3 << 20, "stats": map[string]any{"inactive_file": 1 << 20}},
		})
	case strings.HasSuffix(r.URL.Path, "/update"):
		body, _ := io.ReadAll(r.Body)
		e.updates = append(e.updates, string(body))
		_, _ = w.Write([]byte("{}"))
	default:
		http.Error(w, `{"message":"the fake does not implement this request"}`, http.StatusNotImplemented)
	}
}

// PutMember adds the container of a member of the warm pool, without an owner.
func (e *Engine) PutMember(id string, running bool) {
	e.SetLabels(id, map[string]string{
		engine.LabelNamespace: "test", engine.LabelSandbox: id, engine.LabelNode: Node, node.LabelPool: "python",
	})
	e.Put(id, running)
}

// SetLabels sets the labels of a sandbox's container.
func (e *Engine) SetLabels(id string, labels map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.labels["test-"+id] = labels
}

// Forget removes the container of a sandbox without a request.
func (e *Engine) Forget(sandbox string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.containers, "test-"+sandbox)
}

// SetHost sets the memory in MiB and the cores of the engine's host.
func (e *Engine) SetHost(memoryMB, cores int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory, e.cores = memoryMB, cores
}

// Updates are the bodies of requests that changed limits.
func (e *Engine) Updates() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.updates)
}

// Note returns the labels of a sandbox's note; nil when there is none.
func (e *Engine) Note(sandbox string) map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.notes[sandbox])
}

// PutNote adds a note.
func (e *Engine) PutNote(sandbox string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes[sandbox] = map[string]string{engine.LabelRole: engine.RoleNote, engine.LabelSandbox: sandbox}
}

// volume answers requests about volumes. All volumes are notes.
func (e *Engine) volume(w http.ResponseWriter, r *http.Request, name string) {
	name = strings.TrimPrefix(name, "test-note-")
	switch labels, ok := e.notes[name]; {
	case r.Method == http.MethodPost:
		var body struct {
			Name   string
			Labels map[string]string
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		if !strings.HasPrefix(body.Name, "test-note-") {
			http.Error(w, `{"message":"the fake does not implement other volumes"}`, http.StatusNotImplemented)
			return
		}
		e.notes[strings.TrimPrefix(body.Name, "test-note-")] = body.Labels
		_ = json.NewEncoder(w).Encode(body)
	case name == "":
		list := []any{}
		for name, labels := range e.notes {
			list = append(list, map[string]any{"Name": "test-note-" + name, "Labels": labels})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"Volumes": list})
	case !ok:
		http.Error(w, `{"message":"no such volume"}`, http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(e.notes, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"Name": "test-note-" + name, "Labels": labels})
	}
}

// checkpoints are those of the engine's containers.
type checkpoints struct {
	of     map[string]bool // by the name of the container
	refuse func()          // called where making one fails; nil: none fails
	lose   bool            // making one fails, and the container ends
	late   int             // how many of the next inspections say that a container runs which has ended
}

// PutCheckpoint adds the checkpoint of a sandbox's container.
func (e *Engine) PutCheckpoint(sandbox string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checkpoints.of["test-"+sandbox] = true
}

// HasCheckpoint reports whether a sandbox's container has a checkpoint.
func (e *Engine) HasCheckpoint(sandbox string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.checkpoints.of["test-"+sandbox]
}

// Runs reports whether a sandbox's container runs.
func (e *Engine) Runs(sandbox string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.containers["test-"+sandbox]
}

// BreakCheckpoints makes each further checkpoint fail, and calls then; with lose its container ends, and late further inspections say that it runs.
func (e *Engine) BreakCheckpoints(lose bool, late int, then func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checkpoints.refuse, e.checkpoints.lose, e.checkpoints.late = then, lose, late
}

// checkpointed is the container of a path about checkpoints.
func checkpointed(path string) string {
	path, _, _ = strings.Cut(path, "/checkpoints")
	return strings.TrimSuffix(path, "/start")
}

// checkpoint answers requests about a container's checkpoint.
func (e *Engine) checkpoint(w http.ResponseWriter, r *http.Request, name string) {
	switch {
	case r.Method == http.MethodGet:
		list := []map[string]string{}
		if e.checkpoints.of[name] {
			list = append(list, map[string]string{"Name": engine.CheckpointName})
		}
		_ = json.NewEncoder(w).Encode(list)
	case r.Method == http.MethodDelete:
		delete(e.checkpoints.of, name)
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Query().Has("checkpoint"):
		e.containers[name] = true
		w.WriteHeader(http.StatusNoContent)
	case e.checkpoints.refuse != nil:
		e.containers[name] = !e.checkpoints.lose
		e.checkpoints.refuse()
		http.Error(w, `{"message":"the disk is full"}`, http.StatusInternalServerError)
	default:
		e.containers[name], e.checkpoints.of[name] = false, true
		w.WriteHeader(http.StatusCreated)
	}
}
