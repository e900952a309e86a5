package faulttest

import (
	"bufio"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What a process may have more at the end than it had idle at the start: pools of connections stay open for a while. Seen were at most 10
// goroutines and 17 descriptors: a process has up to 20 connections to Redis.
const (
	moreGoroutines  = 20
	moreDescriptors = 30
	idleWithin      = 150 * time.Second // the queue looks once a minute for tasks that a dead process had, and then waits before it repeats them
)

// use is what a process holds.
type use struct{ goroutines, descriptors int }

// kindOf is the kind of a component: "worker" of "worker-2".
func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "-")
	return kind
}

// using measures the processes that run, the largest of each kind. Without Config.Links it is empty.
func (f *Farm) using() map[string]use {
	found := map[string]use{}
	for name := range f.links {
		if !f.Alive(name) {
			continue
		}
		u, err := f.useOf(name)
		if err != nil {
			f.t.Logf("measure %s: %v", name, err)
			continue
		}
		limit := found[kindOf(name)]
		found[kindOf(name)] = use{max(limit.goroutines, u.goroutines), max(limit.descriptors, u.descriptors)}
	}
	return found
}

// useOf measures one process.
func (f *Farm) useOf(name string) (u use, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.PID(name)))
	if err != nil {
		return use{}, err
	}
	u.descriptors = len(entries)
	_, address, _ := strings.Cut(f.components[name].env[len(f.components[name].env)-1], "=")
	answer, err := http.Get("http://" + address + "/metrics") //nolint:noctx // a process of this machine, bounded by the test
	if err != nil {
		return use{}, err
	}
	defer func() { _ = answer.Body.Close() }()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			u.goroutines, err = strconv.Atoi(value)
			return u, err
		}
	}
	return use{}, fmt.Errorf("%s shows no go_goroutines", address)
}

// End closes every sandbox, prints what is left of the farm's work, and fails the test if anything is: containers, keys, reservations and
// documents of sandboxes and jobs that have ended, staged objects, goroutines or descriptors.
func (f *Farm) End() {
	f.t.Helper()
	if n := f.CloseAll(); n > 0 {
		f.t.Errorf("%d containers are left", n)
	}
	var keys []string
	var now map[string]use
	var more []string
	for end := time.Now().Add(idleWithin); ; <-time.After(500 * time.Millisecond) {
		keys, now, more = slices.Concat(f.leftKeys(), f.leftRecords(), f.leftObjects()), f.using(), nil
		for kind, before := range f.idleUse {
			if now[kind].goroutines > before.goroutines+moreGoroutines || now[kind].descriptors > before.descriptors+moreDescriptors {
				more = append(more, kind)
			}
		}
		if len(keys)+len(more) == 0 || time.Now().After(end) {
			break
		}
	}
	line := fmt.Sprintf("%-44s %d containers, %d keys and objects left", f.t.Name()+", at the end", len(f.Containers()), len(keys))
	for _, kind := range slices.Sorted(maps.Keys(f.idleUse)) {
		line += fmt.Sprintf("; %s: %d goroutines (idle at first: %d), %d descriptors (%d)", kind, now[kind].goroutines, f.idleUse[kind].goroutines, now[kind].descriptors, f.idleUse[kind].descriptors)
	}
	report(f.t, line)
	if len(keys) > 0 {
		f.t.Errorf("keys and objects are left: %v", keys[:min(len(keys), 20)])
	}
	if len(more) > 0 {
		f.t.Errorf("these hold more than at first: %v", more)
	}
}
