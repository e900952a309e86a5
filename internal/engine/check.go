package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/checkpoint"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Rules bound what a Checker allows, beyond the profile.
type Rules struct {
	Limits   farm.Limits // the maxima of a sandbox's resources; zero: the defaults
	Runtimes []string    // OCI runtimes of sandboxes, beside that of the Engine's Config
	Build    []string    // the command of the network of a build; nil: there is none
}

// Checker checks the bodies of calls to the engine, for a proxy between an engine and the programs that use this package. It reads from a
// body what callers of this package may choose, makes with the same functions the body that this package would send, and compares. So
// every field that this package does not set, or sets to another value, is refused with CodeInvalid and the name of the field. It returns
// the body that it made: not one byte of the caller's reaches the engine.
type Checker struct {
	engine *Engine
	rules  Rules
}

// NewChecker checks what is sent to e's engine in e's namespace.
func (e *Engine) NewChecker(r Rules) *Checker {
	if r.Limits == (farm.Limits{}) {
		r.Limits = farm.DefaultLimits()
	}
	return &Checker{engine: e, rules: r}
}

// CreateCall is a checked call that creates a container.
type CreateCall struct {
	Body   []byte // to send
	Image  string // name or id. The Checker does not know whether the container may have it
	Volume string // the agent's volume that it mounts, which has a name of this farm; empty: none
}

// ExecCall is a checked call that creates an exec.
type ExecCall struct {
	Body    []byte // to send
	User    string // "uid:gid", never root; empty: that of the container
	Command []string
}

// Exec checks the body of a call that creates an exec.
func (c *Checker) Exec(body []byte) (ExecCall, error) {
	var got container.ExecOptions
	sent, err := remake(body, &got, func() any { return execOptions(got.User, got.Cmd) })
	if err == nil && got.User != "" && !notRoot(got.User) {
		err = farm.Invalidf("User is %q: it must be uid:gid, and neither may be 0", farm.Shorten(got.User))
	}
	if err == nil && len(got.Cmd) == 0 {
		err = farm.Invalidf("Cmd is empty")
	}
	return ExecCall{Body: sent, User: got.User, Command: got.Cmd}, err
}

// ExecStart checks the body of a call that starts an exec, and returns the one to send.
func (c *Checker) ExecStart(body []byte) ([]byte, error) {
	return remake(body, &container.ExecStartOptions{}, func() any { return container.ExecStartOptions{} })
}

// Update checks the body of a call that changes a container's limits, and returns the one to send.
func (c *Checker) Update(body []byte) ([]byte, error) {
	var got container.UpdateConfig
	var r farm.Resources
	sent, err := remake(body, &got, func() any {
		r = farm.Resources{MemoryMB: int(got.Memory >> 20), CPUs: coresOf(got.NanoCPUs)}
		if got.PidsLimit != nil {
			r.PIDs = int(*got.PidsLimit)
		}
		return updateConfig(r)
	})
	if err != nil {
		return nil, err
	}
	r.DiskMB = 1 // it cannot be changed
	return sent, c.checkResources(r)
}

// Checkpoint checks the body of a call that makes a checkpoint, and returns the one to send.
func (c *Checker) Checkpoint(body []byte) ([]byte, error) {
	return remake(body, &checkpoint.CreateOptions{}, func() any { return checkpointOptions() })
}

// Volume checks the body of a call that creates a volume, and returns the one to send.
func (c *Checker) Volume(body []byte) ([]byte, error) {
	var got volume.CreateOptions
	sent, err := remake(body, &got, func() any { return volume.CreateOptions{Name: got.Name, Labels: got.Labels} })
	if err != nil {
		return nil, err
	}
	e := c.engine
	name := ""
	switch got.Labels[LabelRole] {
	case RoleAgent:
		name = e.namespace + "-agent-"
	case RoleNode:
		name = e.namespace + "-node"
	case RoleNote:
		name = e.noteVolume(got.Labels[LabelSandbox])
	}
	switch {
	case got.Labels[LabelNamespace] != e.namespace:
		return nil, farm.Invalidf("Labels: %s must be %q", LabelNamespace, e.namespace)
	case name == "", got.Name != name && (got.Labels[LabelRole] != RoleAgent || !strings.HasPrefix(got.Name, name)):
		return nil, farm.Invalidf("Name %q is not that of a volume with the role %q", farm.Shorten(got.Name), farm.Shorten(got.Labels[LabelRole]))
	}
	return sent, checkLabels(got.Labels)
}

// checkResources compares resources with the limits.
func (c *Checker) checkResources(r farm.Resources) error {
	l := c.rules.Limits
	for _, n := range []struct {
		name  string
		got   float64
		limit float64
	}{
		{"memory_mb", float64(r.MemoryMB), float64(l.Memory.Max)},
		{"cpus", r.CPUs, l.CPUs.Max},
		{"pids", float64(r.PIDs), float64(l.PIDs.Max)},
		{"disk_mb", float64(r.DiskMB), float64(l.Disk.Max)},
	} {
		if n.got <= 0 || n.got > n.limit {
			return farm.Invalidf("%s is %g: it must be more than 0 and at most %g (limits.%s.max)", n.name, n.got, n.limit, n.name)
		}
	}
	return nil
}

// checkLabels refuses labels of other programs, some of which act on them.
func checkLabels(labels map[string]string) error {
	for name := range labels {
		if !strings.HasPrefix(name, "sandfarm.") {
			return farm.Invalidf("Labels: %q does not begin with sandfarm.", farm.Shorten(name))
		}
	}
	return nil
}

// checkGPUEnv refuses variables that NVIDIA's runtime reads outside of the sandbox, beside the one that this package sets.
func checkGPUEnv(s sandboxSpec) error {
	for name := range s.Env {
		if len(s.GPUs) > 0 && name != visibleDevices && farm.GPUEnv(name) {
			return farm.Invalidf("Env: %q cannot be set beside a GPU", farm.Shorten(name))
		}
	}
	return nil
}

var ids = regexp.MustCompile(`^([1-9][0-9]{0,9}):([1-9][0-9]{0,9})$`)

// notRoot reports whether a user is written as uid:gid with ids that the kernel takes as they are, neither of them 0.
func notRoot(user string) bool {
	match := ids.FindStringSubmatch(user)
	return match != nil && !slices.ContainsFunc(match[1:], func(id string) bool {
		_, err := strconv.ParseUint(id, 10, 31)
		return err != nil
	})
}

// coresOf is the number of cores that this package sends as nano: the inverse of a conversion that rounds down.
func coresOf(nano int64) float64 {
	cores := float64(nano) / 1e9
	if int64(cores*1e9) < nano {
		cores = math.Nextafter(cores, math.Inf(1))
	}
	return cores
}

// remake decodes a body into got, and returns the JSON of what build makes of it. The two must be equal.
func remake(body []byte, got any, build func() any) ([]byte, error) {
	tree, err := parseJSON(body)
	if err != nil {
		return nil, farm.Invalidf("the body: %v", err)
	}
	if err := json.Unmarshal(body, got); err != nil {
		return nil, farm.Invalidf("the body: %v", err)
	}
	return compare(tree, build())
}

// compare returns the JSON of want, which must be equal to tree.
func compare(tree, want any) ([]byte, error) {
	sent, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("pack request: %w", err)
	}
	wanted, err := parseJSON(sent)
	if err != nil {
		return nil, fmt.Errorf("pack request: %w", err)
	}
	if field, differs := difference("", tree, wanted); differs {
		return nil, farm.Invalidf("%s is not what this farm sends", farm.Shorten(field))
	}
	return sent, nil
}

// refreshed calls try, and once more with new facts about the engine if it returns CodeInvalid: the engine may have been restarted with
// other settings.
func (c *Checker) refreshed(ctx context.Context, try func(cpus int) error) error {
	for first := true; ; first = false {
		cpus, err := c.engine.cores(ctx)
		if err != nil {
			return err
		}
		if err = try(cpus); farm.CodeOf(err) != farm.CodeInvalid || !first {
			return err
		}
		c.engine.mu.Lock()
		c.engine.cpus = 0
		c.engine.mu.Unlock()
	}
}

// jsonDepth is how deep values may be nested in a body. Those of this package are five deep.
const jsonDepth = 32

// parseJSON reads one JSON document. Keys keep their spelling, numbers their digits. A key that is repeated is an error, and so is
// anything after the document: two programs that read it would see different values.
func parseJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	value, err := parseValue(d, jsonDepth)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something after the JSON document")
	}
	return value, nil
}

func parseValue(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = errors.New("the JSON document is incomplete")
	}
	if err != nil {
		return nil, err
	}
	if depth == 0 {
		return nil, fmt.Errorf("the JSON document is nested more than %d deep", jsonDepth)
	}
	switch token {
	case json.Delim('{'):
		object := map[string]any{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string) // the decoder accepts only strings here
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("the key %q is repeated", name)
			}
			if object[name], err = parseValue(d, depth-1); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			value, err := parseValue(d, depth-1)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err := d.Token()
		return list, err
	default:
		return token, nil
	}
}

// difference names the first place at which two values of parseJSON differ. It never has a value: variables may be secret.
func difference(path string, a, b any) (string, bool) {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return place(path), true
		}
		all := maps.Clone(a)
		maps.Copy(all, b)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			inner := key
			if path != "" {
				inner = path + "." + key
			}
			left, inA := a[key]
			right, inB := b[key]
			if inA != inB {
				return inner, true
			}
			if found, differs := difference(inner, left, right); differs {
				return found, true
			}
		}
		return "", false
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return place(path), true
		}
		for i := range a {
			if found, differs := difference(fmt.Sprintf("%s[%d]", path, i), a[i], b[i]); differs {
				return found, true
			}
		}
		return "", false
	default:
		if a != b { // never a panic: a is neither a map nor a slice
			return place(path), true
		}
		return "", false
	}
}

// place names a path for an error.
func place(path string) string {
	if path == "" {
		return "the body"
	}
	return path
}
