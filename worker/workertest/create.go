package workertest

import (
	"encoding/json"
	"net/http"
	"strings"
)

// creates is what a fake engine creates.
type creates struct {
	hold  chan struct{} // the creates wait until it is closed; nil: they do not
	begun chan struct{} // has a value for each that waits
	made  int
}

// Create lets containers be created, not started, from now on.
func (e *Engine) Create() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.creates = &creates{}
}

// HoldCreates is Create, but each create waits until release is called. As in an engine, it continues if its caller leaves. begun has a value for
// each create that waits.
func (e *Engine) HoldCreates() (begun <-chan struct{}, release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.creates = &creates{hold: make(chan struct{}), begun: make(chan struct{}, 16)}
	return e.creates.begun, func() { close(e.creates.hold) }
}

// Created counts the containers that were created.
func (e *Engine) Created() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.creates.made
}

// awaitCreate holds a request that creates a container.
func (e *Engine) awaitCreate(r *http.Request) {
	e.mu.Lock()
	c := e.creates
	e.mu.Unlock()
	if c != nil && c.hold != nil && strings.HasSuffix(r.URL.Path, "/containers/create") {
		c.begun <- struct{}{}
		<-c.hold
	}
}

// create answers a request that creates a container. The caller holds mu.
func (e *Engine) create(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if _, ok := e.containers[name]; ok {
		http.Error(w, `{"message":"Conflict. The container name is already in use"}`, http.StatusConflict)
		return
	}
	var body struct{ Labels map[string]string }
	_ = json.NewDecoder(r.Body).Decode(&body)
	e.containers[name], e.labels[name] = false, body.Labels
	e.creates.made++
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"Id": name})
}

// hasLabels reports whether labels match the filters of a request.
func hasLabels(labels map[string]string, filters string) bool {
	var f struct{ Label map[string]bool }
	_ = json.Unmarshal([]byte(filters), &f)
	for want := range f.Label {
		name, value, exact := strings.Cut(want, "=")
		if got, ok := labels[name]; !ok || exact && got != value {
			return false
		}
	}
	return true
}
