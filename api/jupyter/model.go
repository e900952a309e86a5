package jupyter

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
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

const (
	// defaultSpec is the kernelspec that every client knows, and defaultImage the image behind it.
	defaultSpec, defaultImage = "python3", "python"
	// pythonLanguage is the language of kernels that keep variables.
	pythonLanguage = "python"
)

// specModel is a kernelspec. Clients drop one that lacks any of the fields.
type specModel struct {
	Name      string          `json:"name"`
	Spec      wire.KernelSpec `json:"spec"`
	Resources map[string]any  `json:"resources"`
}

// specs are the kernelspecs: one for each image that runs Python, and python3 for the farm's default image.
func (s *Server) specs(ctx context.Context) (map[string]specModel, error) {
	images, err := s.cfg.Service.Images(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]specModel{defaultSpec: specOf(defaultSpec, wire.Image{Name: defaultImage, Languages: []string{pythonLanguage}})}
	for _, image := range images.Items {
		if image.Name != defaultImage && len(image.Languages) > 0 {
			out[image.Name] = specOf(image.Name, image)
		}
	}
	return out, nil
}

func specOf(name string, image wire.Image) specModel {
	display := "Python 3 (Sandfarm)"
	if name != defaultSpec {
		display = "Sandfarm: " + image.Name
	}
	language := pythonLanguage
	if !slices.Contains(image.Languages, language) {
		language = image.Languages[0]
	}
	return specModel{Name: name, Resources: map[string]any{}, Spec: wire.KernelSpec{
		Argv: []string{"sandfarm", "kernel"}, Display: display, Language: language, Interrupt: "message", Env: map[string]string{},
		Metadata: map[string]any{"image": image.Name, "description": image.Description},
	}}
}

// specName is the kernelspec that a client means.
func specName(given string) string {
	switch given {
	case "", defaultImage:
		return defaultSpec
	default:
		return given
	}
}

// spec finds a kernelspec.
func (s *Server) spec(ctx context.Context, given string) (specModel, error) {
	all, err := s.specs(ctx)
	if err != nil {
		return specModel{}, err
	}
	if found, ok := all[specName(given)]; ok {
		return found, nil
	}
	return specModel{}, farm.NotFoundf("There is no kernelspec %q: each image of the farm is one, and %s is the default.", farm.Shorten(given), defaultSpec)
}

func (s *Server) listSpecs(c *gin.Context) error {
	all, err := s.specs(c.Request.Context())
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, gin.H{"default": defaultSpec, "kernelspecs": all})
}

func (s *Server) readSpec(c *gin.Context) error {
	found, err := s.spec(c.Request.Context(), c.Param("name"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, found)
}

// imageOf is the image of a kernelspec.
func imageOf(spec string) string {
	if spec == defaultSpec {
		return defaultImage
	}
	return spec
}

// languageOf is the language of cells of a kernel, whose kernelspec may be gone.
func (s *Server) languageOf(ctx context.Context, spec string) string {
	if found, err := s.spec(ctx, spec); err == nil {
		return strings.ToLower(found.Spec.Language)
	}
	return pythonLanguage
}
