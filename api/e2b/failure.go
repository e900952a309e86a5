package e2b

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
)

// Gone says that a sandbox does not run: it has ended, or is paused. The SDKs know it by its status and its words.
type Gone struct{ box Box }

func gone(box Box) error { return &Gone{box} }

// Error is the sentence that the SDKs look for.
func (g *Gone) Error() string { return "The sandbox was not found" }

// goneBody is the answer to a request to a sandbox that is gone.
type goneBody struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Code      int    `json:"code"`
}

// failure is any other answer with an error.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// headerRetry tells the SDKs whether a request may be sent again.
const headerRetry = "Should-Retry"

// Write answers for a sandbox that does not run.
func (g *Gone) Write(c *gin.Context) {
	c.Header(headerRetry, "false")
	_ = rest.Reply(c, http.StatusBadGateway, goneBody{ShownID(g.box.ID), g.Error(), http.StatusBadGateway})
	c.Abort()
}

// WriteFailure answers with an error in E2B's form. What the farm calls unprocessable is a bad request there. 409 means to the SDKs that a
// sandbox is paused already, so no error of the farm is one.
func WriteFailure(c *gin.Context, p wire.Problem) {
	status := p.Status
	switch {
	case status == http.StatusUnprocessableEntity, status == http.StatusConflict:
		status = http.StatusBadRequest
	case status == http.StatusServiceUnavailable && c.Request.Method == http.MethodPost:
		c.Header(headerRetry, "false") // it may have been done
	}
	_ = rest.Reply(c, status, failure{status, p.Detail})
}

// NotOffered refuses what E2B offers and the farm does not.
func NotOffered(what string) func(*gin.Context) error {
	return func(*gin.Context) error { return rest.BadRequestf("%s are not offered by this farm.", what) }
}
