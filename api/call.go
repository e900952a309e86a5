package api

import (
	"crypto/sha256"
	"net/url"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
)

// call reads everything but the body of a request that starts work: the tenant, the wait and the idempotency key.
func (s *Server) call(c *gin.Context, standard time.Duration, body rest.Decoded) (service.Call, error) {
	wait, err := s.wait(c, standard)
	if err != nil {
		return service.Call{}, err
	}
	call := service.Call{Tenant: rest.Tenant(c), Wait: wait, Problems: body.Problems}
	call.Route = c.Request.Method + " " + c.Request.URL.EscapedPath()
	if keys, ok := c.Request.Header["Idempotency-Key"]; ok {
		if call.Key = keys[0]; call.Key == "" || len(keys) > 1 {
			return call, rest.BadRequestf("the Idempotency-Key must be given once and not be empty")
		}
		call.Body = sha256.Sum256(body.Text)
	}
	if path, ok := c.GetQuery("path"); ok {
		call.Route += "?path=" + url.QueryEscape(path)
	}
	return call, nil
}

// wait reads how long the caller waits for the job; standard is the default.
func (s *Server) wait(c *gin.Context, standard time.Duration) (time.Duration, error) {
	return rest.Wait(c, standard, time.Duration(s.cfg.Limits.WaitMaxSeconds)*time.Second)
}

// bind decodes a JSON body, up to the farm's limit.
func (s *Server) bind(c *gin.Context, into any) (rest.Decoded, error) {
	return rest.Bind(c, s.cfg.Limits.MaxBodyBytes, into)
}

// bindOptional is bind for an optional body.
func (s *Server) bindOptional(c *gin.Context, into any) (rest.Decoded, error) {
	return rest.BindOptional(c, s.cfg.Limits.MaxBodyBytes, into)
}
