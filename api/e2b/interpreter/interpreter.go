package interpreter

import (
	"encoding/json"
	"net/http"
	"path"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
)

// keepalive is how often a stream without output has a line, as with E2B.
const keepalive = 5 * time.Second

// Interpreter serves the port. It is safe for concurrent use.
type Interpreter struct {
	service *service.Service
	maxBody int64
	now     func() time.Time
}

// New makes an Interpreter. maxBody bounds the bodies of requests, in bytes.
func New(s *service.Service, maxBody int64, now func() time.Time) *Interpreter {
	return &Interpreter{service: s, maxBody: maxBody, now: now}
}

// Serve answers a request.
func (i *Interpreter) Serve(c *gin.Context, box e2b.Box) error {
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
func (i *Interpreter) bind(c *gin.Context, into any) error {
	text, err := rest.ReadJSON(c, i.maxBody)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return rest.BadRequestf("the body is not what this request takes: %s", err)
	}
	return nil
}
