package jupyter

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// maxBodyBytes bounds a body, which has the environment of a kernel.
	maxBodyBytes = 1 << 20
	// maxKernels bounds a list. A client that gets an incomplete list forgets the kernels that are missing.
	maxKernels = 2000
	// listPage is how many sandboxes are read at once.
	listPage = 200
	// startTimeout is how long the answer to a create waits for the sandbox, unless the client says more: some clients wait ten seconds.
	startTimeout = 8 * time.Second
	// launchSpare is left of the time that a client gives for a start.
	launchSpare = 2 * time.Second
	// controlWait is how long interrupts and restarts are waited for.
	controlWait = 30 * time.Second
	// kernelContext is the context of a sandbox that is its kernel.
	kernelContext = "default"
)

// createBody is what clients send to make a kernel.
type createBody struct {
	Name string            `json:"name"`
	Env  map[string]string `json:"env"`
}

// read decodes a body, which may be empty. Clients send fields that the farm does not know, and no or a wrong content type.
func read(c *gin.Context, into any) error {
	return rest.DecodeAnyJSON(c, maxBodyBytes, func(text []byte) error {
		if len(bytes.TrimSpace(text)) > 0 && json.Unmarshal(text, into) != nil {
			return rest.BadRequestf("the body is not the JSON object that this needs")
		}
		return nil
	})
}

func (s *Server) version(c *gin.Context) error {
	return rest.Reply(c, http.StatusOK, gin.H{"version": s.cfg.Version})
}

func (s *Server) status(c *gin.Context) error {
	list, err := s.list(c)
	if err != nil {
		return err
	}
	last, connections := s.started, 0
	for i := range list {
		if list[i].LastUsedAt.After(last) {
			last = list[i].LastUsedAt
		}
		connections += s.connections(farm.Ref{Tenant: rest.Tenant(c), ID: list[i].ID})
	}
	return rest.Reply(c, http.StatusOK, gin.H{"started": stamp(s.started), "last_activity": stamp(last), "kernels": len(list), "connections": connections})
}

// list are the sandboxes of the caller that are kernels.
func (s *Server) list(c *gin.Context) ([]wire.Sandbox, error) {
	var out []wire.Sandbox
	page := store.Page{Limit: listPage}
	for len(out) < maxKernels {
		got, err := s.cfg.Service.Sandboxes(c.Request.Context(), rest.Tenant(c), service.SandboxQuery{States: farm.OpenStates(), Page: page})
		if err != nil {
			return nil, err
		}
		for _, box := range got.Items {
			if box.Labels[labelKernel] != "" {
				out = append(out, box)
			}
		}
		if got.NextCursor == "" {
			break
		}
		page.Cursor = string(got.NextCursor)
	}
	return out, nil
}

func (s *Server) listKernels(c *gin.Context) error {
	list, err := s.list(c)
	if err != nil {
		return err
	}
	out := make([]kernelModel, len(list))
	for i := range list {
		out[i] = s.kernelModel(rest.Tenant(c), &list[i])
	}
	return rest.Reply(c, http.StatusOK, out)
}

// box reads the sandbox of a kernel. One that has no kernel, or none any more, is not found.
func (s *Server) box(ctx context.Context, tenant, kernel string) (wire.Sandbox, error) {
	id, err := sandboxOf(kernel)
	if err != nil {
		return wire.Sandbox{}, err
	}
	box, err := s.cfg.Service.Sandbox(ctx, tenant, id)
	if err != nil && farm.CodeOf(err) != farm.CodeNotFound {
		return box, err
	}
	if err != nil || box.Labels[labelKernel] == "" || stateOf(&box) == "" {
		return box, noKernel(kernel)
	}
	return box, nil
}

func (s *Server) readKernel(c *gin.Context) error {
	box, err := s.box(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, s.kernelModel(rest.Tenant(c), &box))
}

func (s *Server) createKernel(c *gin.Context) error {
	var body createBody
	if err := read(c, &body); err != nil {
		return err
	}
	box, err := s.create(c.Request.Context(), rest.Tenant(c), body, nil)
	if err != nil {
		return err
	}
	c.Header("Location", Base+"/api/kernels/"+kernelOf(box.ID))
	return rest.Reply(c, http.StatusCreated, s.kernelModel(rest.Tenant(c), &box))
}

// create makes a kernel, of a new sandbox or of the one that the environment names. It returns when the sandbox is ready, or later than the
// client would wait.
func (s *Server) create(ctx context.Context, tenant string, body createBody, labels map[string]string) (wire.Sandbox, error) {
	spec, err := s.spec(ctx, body.Name)
	if err != nil {
		return wire.Sandbox{}, err
	}
	o, err := optionsOf(body.Env)
	if err != nil {
		return wire.Sandbox{}, err
	}
	marks := map[string]string{labelKernel: spec.Name}
	maps.Copy(marks, labels)
	if o.sandbox != "" {
		return s.attach(ctx, tenant, o.sandbox, marks)
	}
	image := imageOf(spec.Name)
	o.create.Image, o.create.Labels = &image, marks
	out, err := s.cfg.Service.CreateSandbox(ctx, service.Call{Tenant: tenant, Wait: o.timeout}, o.create)
	if err != nil {
		return wire.Sandbox{}, err
	}
	if out.Done() && out.Job.State != string(farm.JobCompleted) {
		if out.Job.Error != nil {
			return wire.Sandbox{}, farm.Errorf(farm.Code(out.Job.Error.Code), "%s", out.Job.Error.Message)
		}
		return wire.Sandbox{}, farm.Errorf(farm.CodeUnavailable, "The sandbox of the kernel could not be started. Try again.")
	}
	return *out.Sandbox, nil
}

// attach makes an existing sandbox a kernel.
func (s *Server) attach(ctx context.Context, tenant, id string, marks map[string]string) (wire.Sandbox, error) {
	box, err := s.cfg.Service.Sandbox(ctx, tenant, id)
	if err != nil {
		return box, err
	}
	if stateOf(&box) == "" || stateOf(&box) == stateDead {
		return box, farm.Conflictf("Sandbox %s is %s: it has no kernel.", box.ID, box.State)
	}
	if box.Labels[labelKernel] != "" {
		return box, nil
	}
	all := maps.Clone(box.Labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, marks)
	all[labelAttached] = "true"
	return s.cfg.Service.UpdateSandbox(ctx, service.Call{Tenant: tenant}, id, wire.UpdateRequest{Labels: &all})
}

// options are what a client can say of a new kernel, in variables whose names begin with KERNEL_.
type options struct {
	sandbox string
	timeout time.Duration
	create  wire.CreateRequest
}

// optionsOf reads the environment of a new kernel. A client sends all variables of its own that begin with KERNEL_: unknown ones mean nothing
// here, and others are for the code.
func optionsOf(env map[string]string) (options, error) {
	o := options{timeout: startTimeout, create: wire.CreateRequest{Env: map[string]string{}, Resources: &wire.ResourcesRequest{}}}
	for name, value := range env {
		if !strings.HasPrefix(name, "KERNEL_") {
			o.create.Env[name] = value
			continue
		}
		if err := o.set(name, value); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (o *options) set(name, value string) error {
	number := func(into **int) error {
		n, err := strconv.Atoi(value)
		if err != nil {
			return farm.Invalidf("%s is %q; it is a whole number", name, farm.Shorten(value))
		}
		*into = &n
		return nil
	}
	switch name {
	case "KERNEL_SANDBOX":
		o.sandbox = value
	case "KERNEL_LAUNCH_TIMEOUT":
		seconds, err := strconv.ParseFloat(value, 64)
		if err == nil && seconds > launchSpare.Seconds() && seconds < time.Hour.Seconds() {
			o.timeout = time.Duration(seconds*float64(time.Second)) - launchSpare
		}
	case "KERNEL_PACKAGES":
		o.create.Packages = strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ';' })
	case "KERNEL_NETWORK":
		o.create.Network = &value
	case "KERNEL_RUNTIME":
		o.create.Runtime = &value
	case "KERNEL_MEMORY_MB":
		return number(&o.create.Resources.MemoryMB)
	case "KERNEL_TTL_SECONDS":
		return number(&o.create.TTLSeconds)
	case "KERNEL_IDLE_SECONDS":
		return number(&o.create.IdleSeconds)
	case "KERNEL_GPU":
		o.create.GPU = &wire.GPURequest{}
		return number(&o.create.GPU.Count)
	case "KERNEL_CPUS":
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return farm.Invalidf("%s is %q; it is a number", name, farm.Shorten(value))
		}
		o.create.Resources.CPUs = &n
	}
	return nil
}

func (s *Server) deleteKernel(c *gin.Context) error {
	box, err := s.box(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	if err := s.remove(c.Request.Context(), rest.Tenant(c), &box); err != nil {
		return err
	}
	return rest.NoContent(c)
}

// remove ends a kernel: its sandbox is closed, or, if somebody else made that, only loses its variables and its labels.
func (s *Server) remove(ctx context.Context, tenant string, box *wire.Sandbox) error {
	defer s.gone(farm.Ref{Tenant: tenant, ID: box.ID})
	call := service.Call{Tenant: tenant, Wait: controlWait}
	if box.Labels[labelAttached] == "" {
		_, err := s.cfg.Service.CloseSandbox(ctx, call, box.ID)
		return err
	}
	if err := s.abort(ctx, farm.Ref{Tenant: tenant, ID: box.ID}); err != nil {
		return err
	}
	if _, err := s.cfg.Service.Control(ctx, call, farm.KindRestart, box.ID, wire.ControlRequest{Context: kernelContext}); err != nil {
		return err
	}
	labels := maps.Clone(box.Labels)
	for _, name := range []string{labelKernel, labelAttached, labelPath, labelType, labelName} {
		delete(labels, name)
	}
	_, err := s.cfg.Service.UpdateSandbox(ctx, service.Call{Tenant: tenant}, box.ID, wire.UpdateRequest{Labels: &labels})
	return err
}

func (s *Server) interruptKernel(c *gin.Context) error {
	box, err := s.box(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	if err := s.interrupt(c.Request.Context(), rest.Tenant(c), box.ID); err != nil {
		return err
	}
	return rest.NoContent(c)
}

// interrupt ends the cell that runs, and cells that wait for the quota.
func (s *Server) interrupt(ctx context.Context, tenant, id string) error {
	s.mu.Lock()
	k := s.kernels[farm.Ref{Tenant: tenant, ID: id}]
	s.mu.Unlock()
	if k != nil {
		for _, session := range k.all() {
			session.dropUncounted()
		}
	}
	_, err := s.cfg.Service.Control(ctx, service.Call{Tenant: tenant, Wait: controlWait}, farm.KindInterrupt, id, wire.ControlRequest{Context: kernelContext})
	return err
}

func (s *Server) restartKernel(c *gin.Context) error {
	ctx := c.Request.Context()
	box, err := s.box(ctx, rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	if err := s.restart(ctx, rest.Tenant(c), box.ID); err != nil {
		return err
	}
	if box, err = s.box(ctx, rest.Tenant(c), c.Param("id")); err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, s.kernelModel(rest.Tenant(c), &box))
}

// restart restarts a kernel. Cells that wait for their turn are not run any more.
func (s *Server) restart(ctx context.Context, tenant, id string) error {
	if err := s.abort(ctx, farm.Ref{Tenant: tenant, ID: id}); err != nil {
		return err
	}
	_, err := s.cfg.Service.Control(ctx, service.Call{Tenant: tenant, Wait: controlWait}, farm.KindRestart, id, wire.ControlRequest{Context: kernelContext})
	return err
}

// kernelOf is the id of the kernel of a sandbox: Jupyter's own server takes nothing but UUIDs in addresses.
func kernelOf(sandbox string) string { return farm.UUIDOf(farm.SandboxPrefix, sandbox) }

// sandboxOf is the sandbox of a kernel. An invalid id is not found.
func sandboxOf(kernel string) (string, error) {
	id := farm.FromUUID(farm.SandboxPrefix, kernel)
	if id == "" {
		return "", noKernel(kernel)
	}
	return id, nil
}

func noKernel(id string) error { return farm.NotFoundf("There is no kernel %q.", farm.Shorten(id)) }
