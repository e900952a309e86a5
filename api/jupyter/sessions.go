package jupyter

import (
	"maps"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
)

// sessionBody is what clients send to make or change a session. Old ones name the notebook as an object.
type sessionBody struct {
	Path     *string `json:"path"`
	Name     *string `json:"name"`
	Type     *string `json:"type"`
	Notebook *struct {
		Path string `json:"path"`
		Name string `json:"name"`
	} `json:"notebook"`
	Kernel *struct {
		ID   string            `json:"id"`
		Name string            `json:"name"`
		Env  map[string]string `json:"env"`
	} `json:"kernel"`
}

// marks are the labels that a session gives its sandbox.
func (b sessionBody) marks() map[string]string {
	out := map[string]string{}
	if b.Notebook != nil {
		out[labelPath], out[labelName], out[labelType] = b.Notebook.Path, b.Notebook.Name, "notebook"
	}
	for name, value := range map[string]*string{labelPath: b.Path, labelName: b.Name, labelType: b.Type} {
		if value != nil {
			out[name] = *value
		}
	}
	return out
}

// listed are the sandboxes of the caller's sessions: kernels with a notebook.
func (s *Server) listed(c *gin.Context) ([]wire.Sandbox, error) {
	all, err := s.list(c)
	var out []wire.Sandbox
	for _, box := range all {
		if box.Labels[labelType] != "" {
			out = append(out, box)
		}
	}
	return out, err
}

func (s *Server) listSessions(c *gin.Context) error {
	list, err := s.listed(c)
	if err != nil {
		return err
	}
	out := make([]sessionModel, len(list))
	for i := range list {
		out[i] = s.sessionModel(rest.Tenant(c), &list[i])
	}
	return rest.Reply(c, http.StatusOK, out)
}

// createSession makes a session, or finds that of the same notebook.
func (s *Server) createSession(c *gin.Context) error {
	ctx, tenant := c.Request.Context(), rest.Tenant(c)
	var body sessionBody
	if err := read(c, &body); err != nil {
		return err
	}
	marks := body.marks()
	if marks[labelPath] == "" {
		return rest.BadRequestf("the session lacks path")
	}
	if marks[labelType] == "" {
		marks[labelType] = "notebook"
	}
	list, err := s.listed(c)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Labels[labelPath] == marks[labelPath] {
			return s.created(c, &list[i])
		}
	}
	create := createBody{}
	if body.Kernel != nil {
		create.Name, create.Env = body.Kernel.Name, body.Kernel.Env
	}
	var box wire.Sandbox
	if body.Kernel != nil && body.Kernel.ID != "" {
		if box, err = s.box(ctx, tenant, body.Kernel.ID); err == nil {
			box, err = s.mark(c, &box, marks)
		}
	} else {
		box, err = s.create(ctx, tenant, create, marks)
	}
	if err != nil {
		return err
	}
	return s.created(c, &box)
}

func (s *Server) created(c *gin.Context, box *wire.Sandbox) error {
	c.Header("Location", Base+"/api/sessions/"+kernelOf(box.ID))
	return rest.Reply(c, http.StatusCreated, s.sessionModel(rest.Tenant(c), box))
}

// mark adds labels to a sandbox.
func (s *Server) mark(c *gin.Context, box *wire.Sandbox, marks map[string]string) (wire.Sandbox, error) {
	labels := maps.Clone(box.Labels)
	maps.Copy(labels, marks)
	return s.cfg.Service.UpdateSandbox(c.Request.Context(), service.Call{Tenant: rest.Tenant(c)}, box.ID, wire.UpdateRequest{Labels: &labels})
}

func (s *Server) readSession(c *gin.Context) error {
	box, err := s.box(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, s.sessionModel(rest.Tenant(c), &box))
}

func (s *Server) changeSession(c *gin.Context) error {
	box, err := s.box(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	var body sessionBody
	if err := read(c, &body); err != nil {
		return err
	}
	marks := body.marks()
	if k := body.Kernel; k != nil && (k.ID != "" && k.ID != kernelOf(box.ID) || k.ID == "" && k.Name != "" && specName(k.Name) != box.Labels[labelKernel]) {
		return s.changeKernel(c, &box, body)
	}
	if box, err = s.mark(c, &box, marks); err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, s.sessionModel(rest.Tenant(c), &box))
}

// changeKernel gives a notebook another kernel. The session has that one's id then.
func (s *Server) changeKernel(c *gin.Context, old *wire.Sandbox, body sessionBody) error {
	ctx, tenant := c.Request.Context(), rest.Tenant(c)
	marks := map[string]string{}
	for _, name := range []string{labelPath, labelName, labelType} {
		marks[name] = old.Labels[name]
	}
	maps.Copy(marks, body.marks())
	var box wire.Sandbox
	var err error
	if body.Kernel.ID != "" {
		if box, err = s.box(ctx, tenant, body.Kernel.ID); err == nil {
			box, err = s.mark(c, &box, marks)
		}
	} else {
		box, err = s.create(ctx, tenant, createBody{Name: body.Kernel.Name, Env: body.Kernel.Env}, marks)
	}
	if err != nil {
		return err
	}
	if err := s.remove(ctx, tenant, old); err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, s.sessionModel(tenant, &box))
}

func (s *Server) deleteSession(c *gin.Context) error { return s.deleteKernel(c) }
