package e2b

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// keepalive is how often a stream without output has a line, as with E2B.
const keepalive = 5 * time.Second

// interpreter serves the port 49999. It is safe for concurrent use.
type interpreter struct {
	service *service.Service
	maxBody int64 // bounds the bodies of requests, in bytes
	now     func() time.Time
}

// serve answers a request.
func (i *interpreter) serve(c *gin.Context, box Box) error {
	id := c.Param("context")
	switch route := path.Base(c.FullPath()); {
	case route == "execute":
		return i.execute(c, box)
	case route == "restart":
		return i.restart(c, box, id)
	case c.Request.Method == http.MethodDelete:
		return i.remove(c, box, id)
	case route == "contexts" && c.Request.Method == http.MethodPost:
		return i.create(c, box)
	case route == "contexts":
		return i.list(c, box)
	default:
		return rest.Reply(c, http.StatusOK, "OK")
	}
}

// bind decodes a body.
func (i *interpreter) bind(c *gin.Context, into any) error {
	return rest.DecodeJSON(c, i.maxBody, func(text []byte) error { return unmarshal(text, into) })
}

const (
	python = "python"
	// standard is the name of the context of code that names none.
	standard = "default"
)

// codeContext is a context as the SDKs have it.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func shown(c farm.CodeContext) codeContext {
	return codeContext{ID: c.Language + "-" + c.Name, Language: c.Language, Cwd: ShownPath(c.Cwd)}
}

// named is the context with an id. One without a language is a context in Python.
func named(id string) farm.CodeContext {
	if language, name, ok := strings.Cut(id, "-"); ok {
		return farm.CodeContext{Name: name, Language: language}
	}
	return farm.CodeContext{Name: id, Language: python}
}

// languageOf is the farm's name of a language.
func languageOf(given string) string {
	switch name := strings.ToLower(strings.TrimSpace(given)); name {
	case "":
		return python
	case "js":
		return "javascript"
	case "ts":
		return "typescript"
	default:
		return name
	}
}

// find finds the context with an id.
func (i *interpreter) find(ctx context.Context, box Box, id string) (farm.CodeContext, error) {
	list, err := i.service.CodeContexts(ctx, box.Tenant, box.ID)
	if err != nil {
		return farm.CodeContext{}, err
	}
	want := named(id)
	at := slices.IndexFunc(list, func(c farm.CodeContext) bool { return c.Name == want.Name && c.Language == want.Language })
	if at < 0 {
		return farm.CodeContext{}, farm.NotFoundf("Context %s not found", farm.Shorten(id))
	}
	return list[at], nil
}

func (i *interpreter) list(c *gin.Context, box Box) error {
	list, err := i.service.CodeContexts(c.Request.Context(), box.Tenant, box.ID)
	if err != nil {
		return err
	}
	out := make([]codeContext, len(list))
	for at, one := range list {
		out[at] = shown(one)
	}
	return rest.Reply(c, http.StatusOK, out)
}

// create makes a context. Its kernel starts meanwhile.
func (i *interpreter) create(c *gin.Context, box Box) error {
	var r struct {
		Language *string `json:"language"`
		Cwd      *string `json:"cwd"`
	}
	if err := i.bind(c, &r); err != nil {
		return err
	}
	want := farm.CodeContext{Name: strings.TrimPrefix(farm.NewID(farm.JobPrefix), farm.JobPrefix), Language: python}
	if r.Language != nil {
		want.Language = languageOf(*r.Language)
	}
	if r.Cwd != nil {
		want.Cwd = RealPath(*r.Cwd)
	}
	made, err := i.service.CreateContext(c.Request.Context(), box.Tenant, box.ID, want)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, shown(made))
}

func (i *interpreter) remove(c *gin.Context, box Box, id string) error {
	ctx := c.Request.Context()
	found, err := i.find(ctx, box, id)
	if err != nil {
		return err
	}
	if err := i.service.RemoveContext(ctx, box.Tenant, box.ID, found.Name, found.Language); err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, nil)
}

// restart replaces the kernel of a context. The job that does it does not wait in line.
func (i *interpreter) restart(c *gin.Context, box Box, id string) error {
	ctx := c.Request.Context()
	found, err := i.find(ctx, box, id)
	if err != nil {
		return err
	}
	call := service.Call{Tenant: box.Tenant, Wait: restartTimeout}
	out, err := i.service.Control(ctx, call, farm.KindRestart, box.ID, wire.ControlRequest{Context: found.Name})
	if err != nil {
		return err
	}
	if out.Job.State != string(farm.JobCompleted) {
		return farm.Errorf(farm.CodeUnavailable, "Failed to restart context %s", id)
	}
	return rest.Reply(c, http.StatusOK, nil)
}
