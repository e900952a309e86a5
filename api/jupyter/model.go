package jupyter

import (
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// timeFormat is the only one that Jupyter's clients read: a fraction of one to six digits, and Z.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// The states of a kernel.
const (
	stateStarting = "starting"
	stateIdle     = "idle"
	stateBusy     = "busy"
	stateDead     = "dead"
)

// kernelModel is a kernel as clients see it.
type kernelModel struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	LastActivity string `json:"last_activity"`
	State        string `json:"execution_state"`
	Connections  int    `json:"connections"`
	Reason       string `json:"reason,omitempty"`
	Sandbox      string `json:"sandbox"` // its id in the farm
}

// sessionModel is a session as clients see it: a notebook with a kernel.
type sessionModel struct {
	ID     string      `json:"id"`
	Path   string      `json:"path"`
	Name   string      `json:"name"`
	Type   string      `json:"type"`
	Kernel kernelModel `json:"kernel"`
}

// Labels of a sandbox that is a kernel.
const (
	labelKernel   = "jupyter"      // the name of its kernelspec
	labelAttached = "jupyter-kept" // "true": somebody else made the sandbox, and it outlives the kernel
	labelPath     = "jupyter-path" // of its notebook; at most farm.Limits.MaxLabelBytes
	labelType     = "jupyter-type" // of the session: notebook, console
	labelName     = "jupyter-name" // of the session
)

// stateOf is the state of the kernel of a sandbox; "": there is none any more.
func stateOf(box *wire.Sandbox) string {
	switch farm.SandboxState(box.State) {
	case farm.SandboxQueued, farm.SandboxStarting:
		return stateStarting
	case farm.SandboxReady, farm.SandboxHibernated:
		return stateIdle
	case farm.SandboxBusy:
		return stateBusy
	case farm.SandboxFailed, farm.SandboxLost:
		return stateDead
	default:
		return ""
	}
}

// kernelModel describes the kernel of a sandbox.
func (s *Server) kernelModel(tenant string, box *wire.Sandbox) kernelModel {
	return kernelModel{
		ID: kernelOf(box.ID), Name: box.Labels[labelKernel], LastActivity: box.LastUsedAt.UTC().Format(timeFormat), State: stateOf(box),
		Connections: s.connections(farm.Ref{Tenant: tenant, ID: box.ID}), Reason: box.Reason, Sandbox: box.ID,
	}
}

func (s *Server) sessionModel(tenant string, box *wire.Sandbox) sessionModel {
	return sessionModel{
		ID: kernelOf(box.ID), Path: box.Labels[labelPath], Name: box.Labels[labelName], Type: box.Labels[labelType],
		Kernel: s.kernelModel(tenant, box),
	}
}

// errorModel is an error as clients read it, beside the fields of the farm's own.
type errorModel struct {
	wire.Problem
	Message string `json:"message"`
	Reason  string `json:"reason"`
}

func stamp(t time.Time) string { return t.UTC().Format(timeFormat) }
