package e2b

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Health says that a sandbox runs, as envd and the code interpreter do.
func (d *Door) Health(c *gin.Context, box Box) error {
	if Port(c.Request) == InterpreterPort {
		return d.Interpret(c, box)
	}
	return rest.NoContent(c)
}

// Interpret passes a request on to the code interpreter.
func (d *Door) Interpret(c *gin.Context, box Box) error {
	if d.Interpreter == nil {
		return rest.Refusef(http.StatusBadGateway, farm.CodeUnavailable, "The sandbox is running but port is not open")
	}
	return d.Interpreter(c, box)
}
