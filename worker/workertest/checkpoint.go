package workertest

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// checkpoints are those of the engine's containers.
type checkpoints struct {
	of     map[string]bool // by the name of the container
	refuse bool            // making one fails, and the container runs on
	lose   bool            // making one fails, and the container ends
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

// BreakCheckpoints makes each further checkpoint fail; with lose its container ends.
func (e *Engine) BreakCheckpoints(lose bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checkpoints.refuse, e.checkpoints.lose = true, lose
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
	case e.checkpoints.refuse:
		e.containers[name] = !e.checkpoints.lose
		http.Error(w, `{"message":"the disk is full"}`, http.StatusInternalServerError)
	default:
		e.containers[name], e.checkpoints.of[name] = false, true
		w.WriteHeader(http.StatusCreated)
	}
}
