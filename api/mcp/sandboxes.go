package mcp

import (
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) createSandbox() *tool {
	usual := farm.DefaultLimits()
	reach := param{
		name: "network", kind: text, standard: "packages", enum: []string{"none", "packages", "allowlist", "full"}, unlisted: []string{"full"},
		doc: "none: nothing; packages: the package index; allowlist: also allow_hosts, if the operator has enabled it.",
	}
	if s.NoAllowlist {
		reach.unlisted, reach.doc = []string{"allowlist", "full"}, "none: nothing; packages: the package index."
	}
	return &tool{
		name: "create_sandbox", title: "Create a sandbox",
		about: "Create an isolated sandbox for code, commands and files, and get its sandbox_id for the other tools. Call it first, once for a task. " + network +
			" It waits up to 45 s; get_job_result follows a longer create. Next: execute_python_code or execute_terminal_command; at the end close_sandbox.",
		params: []param{
			{name: "name", kind: text, doc: "Name to find it by."},
			{name: "image", kind: text, standard: "python", doc: "python has the usual data packages, node has Node.js and npm; an image that is not offered is refused with a list."},
			{name: "packages", kind: texts, doc: "Python packages to install, such as [\"requests\", \"pandas>=2\"]."},
			reach,
			{name: "allow_hosts", kind: texts, hidden: s.NoAllowlist, doc: "Hosts for the network allowlist, such as [\"*.example.com\"]; programs use the proxy in HTTPS_PROXY."},
			{name: "runtime", kind: text, doc: "OCI runtime, such as runsc (gVisor), if the operator allows it."},
			{name: "gpu", kind: whole, low: 0, top: farm.MaxGPUs, doc: "GPUs for it alone; it waits until they are free."},
			{name: "gpu_model", kind: text, doc: "Model of the GPUs, such as a100."},
			{name: "memory_mb", kind: whole, doc: fmt.Sprintf("MiB of memory, files included; usually %d. TensorFlow needs 4096.", usual.Memory.Default)},
			{name: "cpus", kind: number, doc: fmt.Sprintf("Cores, such as 0.5; usually %g.", usual.CPUs.Default)},
			{name: "disk_mb", kind: whole, doc: fmt.Sprintf("MiB of files; usually %d.", usual.Disk.Default)},
			{name: "ttl_seconds", kind: whole, doc: "Seconds until it closes by itself, at least 5; usually a day."},
		},
		output: createSchema, hints: brings(), run: (*call).createSandbox,
	}
}

func (c *call) createSandbox() (*answer, error) {
	r := wire.CreateRequest{
		Name: c.text("name"), Image: c.optional("image"), Packages: c.texts("packages"),
		Network: c.optional("network"), Runtime: c.optional("runtime"), AllowHosts: c.texts("allow_hosts"), TTLSeconds: c.whole("ttl_seconds"), GPU: c.gpu(),
		Resources: c.resources(),
	}
	var made wire.Created
	job, err := c.await(createWait, func(wait time.Duration) (wire.Job, error) {
		var err error
		made, err = c.farm.CreateSandbox(c.ctx, r, wait)
		return made.Job, err
	})
	if err != nil {
		return nil, err
	}
	box := made.Sandbox
	switch {
	case job.State == string(farm.JobCompleted):
		box.State = string(farm.SandboxReady) // with progress the record was read before the job's end
	case job.Final():
		return nil, ended(&job)
	}
	out := &answer{structured: map[string]any{
		"sandbox_id": box.ID, "name": box.Name, "state": box.State, "image": box.Image,
		"expires_at": stamp(box.ExpiresAt), "job_id": job.ID,
	}}
	var b strings.Builder
	fmt.Fprintf(&b, "Sandbox %s is %s (image %s, ends %s).\n", box.ID, box.State, box.Image, stamp(box.ExpiresAt))
	if job.Result != nil && job.Result.Install != nil {
		out.structured["packages"] = outcomesOf(job.Result.Install.Packages)
		writePackages(&b, job.Result.Install.Packages)
	}
	if job.Final() {
		b.WriteString("Next: execute_python_code or execute_terminal_command with this sandbox_id; close_sandbox when done.")
	} else {
		fmt.Fprintf(&b, "It is still being created. Work that you send now runs when it is ready; get_job_result with job_id %q has its state.", job.ID)
	}
	out.text = b.String()
	return out, nil
}

// gpu reads the arguments about devices; nil: none were given. A model without a count is one device.
func (c *call) gpu() *wire.GPURequest {
	count, model := c.whole("gpu"), c.text("gpu_model")
	if count == nil && model == "" {
		return nil
	}
	return &wire.GPURequest{Count: count, Model: model}
}

// resources reads the arguments about memory, cores and files; nil: none were given.
func (c *call) resources() *wire.ResourcesRequest {
	r := wire.ResourcesRequest{MemoryMB: c.whole("memory_mb"), CPUs: c.fraction("cpus"), DiskMB: c.whole("disk_mb")}
	if r == (wire.ResourcesRequest{}) {
		return nil
	}
	return &r
}

func listSandboxes() *tool {
	return &tool{
		name: "list_sandboxes", title: "List sandboxes",
		about:  "List your open sandboxes, newest first: to find a sandbox_id again, or before create_sandbox.",
		output: listSchema, hints: reads(), run: (*call).listSandboxes,
	}
}

func (c *call) listSandboxes() (*answer, error) {
	boxes, err := c.farm.Sandboxes(c.ctx)
	if err != nil {
		return nil, err
	}
	list := make([]map[string]any, len(boxes))
	var b strings.Builder
	for i, box := range boxes {
		list[i] = map[string]any{
			"sandbox_id": box.ID, "name": box.Name, "state": box.State, "image": box.Image,
			"created_at": stamp(box.CreatedAt), "expires_at": stamp(box.ExpiresAt),
		}
		name := ""
		if box.Name != "" {
			name = fmt.Sprintf(" %q", box.Name)
		}
		fmt.Fprintf(&b, "%s%s: %s, image %s, ends %s\n", box.ID, name, box.State, box.Image, stamp(box.ExpiresAt))
	}
	if len(boxes) == 0 {
		b.WriteString("There is no open sandbox. Next: create_sandbox.")
	}
	return &answer{text: b.String(), structured: map[string]any{"sandboxes": list}}, nil
}

func closeSandbox() *tool {
	return &tool{
		name: "close_sandbox", title: "Close a sandbox",
		about:  "Close a sandbox for good, with its variables, packages and files. Call it when the task is done and files are downloaded; links of artifacts keep working.",
		params: []param{sandboxParam()},
		output: closeSchema, hints: hints{destructive: true, idempotent: true}, run: (*call).closeSandbox,
	}
}

func (c *call) closeSandbox() (*answer, error) {
	id := c.text("sandbox_id")
	job, err := c.farm.CloseSandbox(c.ctx, id, closeWait)
	if err != nil {
		return nil, err
	}
	state := string(farm.SandboxClosing)
	switch {
	case job.State == string(farm.JobCompleted):
		state = string(farm.SandboxClosed)
	case job.Final():
		return nil, ended(&job)
	}
	return &answer{
		text:       fmt.Sprintf("Sandbox %s is %s.", id, state),
		structured: map[string]any{"sandbox_id": id, "state": state},
	}, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
