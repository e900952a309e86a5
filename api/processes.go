package api

import (
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) processRoutes() []rest.Route {
	const base = "/v1/sandboxes/{id}/processes"
	const one = base + "/{process}"
	shown := []rest.Answer{{Status: http.StatusOK, Doc: "the process", Body: wire.Process{}}}
	return []rest.Route{
		{Method: "POST", Path: base, Tag: "Processes", Summary: "Start a process", Detail: "It runs beside the jobs of the sandbox, also when the caller disconnects, until it ends, is ended, or the sandbox closes.", Body: wire.ProcessRequest{}, Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "the process, which runs", Body: wire.Process{}}}, Idempotent: true, Handler: s.startProcess},
		{Method: "GET", Path: base, Tag: "Processes", Summary: "List the processes", Detail: "Those that were started here. With all=true the answer also has what else runs in the sandbox, started by jobs and kernels, with its CPU time and memory.", Query: []rest.Parameter{rest.Query("all", "list what jobs and kernels started, too", object{"type": "boolean", "default": false})}, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the processes", Body: wire.Processes{}}}, Handler: s.listProcesses},
		{Method: "GET", Path: one, Tag: "Processes", Summary: "Read a process", Answers: shown, Handler: s.readProcess},
		{Method: "DELETE", Path: one, Tag: "Processes", Summary: "End a process", Detail: "By SIGTERM, and after five seconds by SIGKILL, with everything that it started. The answer is how it ended. One that has ended before is forgotten. In place of the id the pid of a process that runs may be given; one that no caller started ends alone.", Answers: shown, Handler: s.endProcess},
		{Method: "POST", Path: one + "/signal", Tag: "Processes", Summary: "Send a signal to a process and its group", Detail: "In place of the id the pid of a process that runs may be given; one that no caller started gets the signal alone.", Body: wire.SignalRequest{}, Answers: shown, Handler: s.signalProcess},
		{Method: "POST", Path: one + "/resize", Tag: "Processes", Summary: "Set the size of a process's terminal", Body: wire.TerminalSize{}, Answers: shown, Stream: true, Handler: s.resizeProcess},
		{
			Method: "POST", Path: one + "/stdin", Tag: "Processes", Summary: "Write to the input of a process", Detail: "The body is passed on as it comes. A process that reads nothing for ten seconds is answered with 409.", Raw: []string{"application/octet-stream"},
			Query: []rest.Parameter{rest.Query("close", "end the input after the body; for a terminal this types control-D", object{"type": "boolean", "default": false})}, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "how much was written", Body: wire.Written{}}}, Stream: true, Handler: s.writeProcess,
		},
		{
			Method: "GET", Path: one + "/events", Tag: "Processes", Summary: "Stream the output of a process", Detail: "Events stdout, stderr, dropped (output before this was not kept) and exit, which is the last. The last MiB is kept, with Last-Event-ID from there on.",
			Query:   []rest.Parameter{rest.Query("after", "id of the last event that the caller has, as Last-Event-ID", object{"type": "string"})},
			Answers: []rest.Answer{{Status: http.StatusOK, Doc: "server-sent events; data is OutputData or ExitData", Media: "text/event-stream"}}, Handler: s.processEvents,
		},
		{
			Method: "GET", Path: one + "/attach", Tag: "Processes", Summary: "Attach to a process by a WebSocket", Detail: "Input, output, size and exit are binary messages, which the guide to the REST API lists. After a break both directions continue without a lost or repeated byte.", Scope: farm.ScopeRun,
			Query: []rest.Parameter{
				rest.Query("after", "number of the last piece of output that the caller has", object{"type": "string"}),
				rest.Query("writer", "a name of the caller's choice, up to 64 letters, digits, dashes and underscores, under which its input continues after a break", object{"type": "string", "maxLength": 64}),
				rest.Query("written", "how many bytes of the writer's input the process has, by the last message", object{"type": "integer", "minimum": 0}),
			},
			Answers: []rest.Answer{{Status: http.StatusSwitchingProtocols, Doc: "the WebSocket"}}, Handler: s.attachProcess,
		},
	}
}

func (s *Server) startProcess(c *gin.Context) error {
	var r wire.ProcessRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	call, err := s.call(c, 0, body)
	if err != nil {
		return err
	}
	p, err := s.service.StartProcess(c.Request.Context(), call, c.Param("id"), r)
	if err != nil {
		return err
	}
	follows(c, p.ID)
	return rest.Reply(c, http.StatusCreated, p)
}

func (s *Server) listProcesses(c *gin.Context) error {
	all, err := rest.Flag(c, "all")
	if err != nil {
		return err
	}
	list, err := s.service.Processes(c.Request.Context(), rest.Tenant(c), c.Param("id"), all)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) readProcess(c *gin.Context) error {
	p, err := s.service.Process(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Param("process"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, p)
}

func (s *Server) endProcess(c *gin.Context) error {
	p, err := s.service.EndProcess(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Param("process"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, p)
}

func (s *Server) signalProcess(c *gin.Context) error {
	var r wire.SignalRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	p, err := s.service.SignalProcess(c.Request.Context(), service.Call{Tenant: rest.Tenant(c), Problems: body.Problems}, c.Param("id"), c.Param("process"), r)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, p)
}

func (s *Server) resizeProcess(c *gin.Context) error {
	var r wire.TerminalSize
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	p, err := s.service.ResizeProcess(c.Request.Context(), service.Call{Tenant: rest.Tenant(c), Problems: body.Problems}, c.Param("id"), c.Param("process"), r)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, p)
}

// writeProcess passes the body on as it comes. It is not held in memory, so only its kind is checked.
func (s *Server) writeProcess(c *gin.Context) error {
	end, err := rest.Flag(c, "close")
	if err != nil {
		return err
	}
	out, err := s.service.WriteProcess(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Param("process"), rest.Body(c), end)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, out)
}

// processEvents streams the output of a process until its exit.
func (s *Server) processEvents(c *gin.Context) error {
	ctx := c.Request.Context()
	reader, err := s.service.ProcessOutput(ctx, rest.Tenant(c), c.Param("id"), c.Param("process"), lastEvent(c))
	if err != nil {
		return err
	}
	if err := s.sendEvents(c, reader, "output of "+farm.Shorten(c.Param("process"))); err != nil {
		s.log.InfoContext(ctx, "output of a process broke off", slog.String("request_id", rest.RequestID(c)), slog.Any("error", err))
		panic(http.ErrAbortHandler) // the caller reconnects with its last id, and learns why if it cannot
	}
	return nil
}

// attachProcess serves a WebSocket. No browser sends a key with one, and every browser sends it to any server that a page names: so pages of
// other origins are refused, also where the farm has no keys and a GET of theirs is let pass since they cannot read its answer.
func (s *Server) attachProcess(c *gin.Context) error {
	if own := (guard.Guard{Hosts: s.cfg.TrustedHosts}); !bySession(c) && !own.Origin(c.Request) {
		return rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "Pages of other origins may not attach to processes.")
	}
	ctx := c.Request.Context()
	process, err := s.service.Attach(ctx, rest.Tenant(c), c.Param("id"), c.Param("process"), service.AttachPoint{After: c.Query("after"), Writer: c.Query("writer"), Written: c.Query("written")})
	if err != nil {
		return err
	}
	defer process.Close()
	if !rest.Upgrades(c.Request) {
		c.Header("Upgrade", "websocket")
		return rest.Refusef(http.StatusUpgradeRequired, farm.CodeInvalid, "This address serves WebSockets only. For server-sent events use %s.", "…/events")
	}
	s.attached.Add(1) // the HTTP server does not wait for connections that it has given away
	defer s.attached.Done()
	s.opened(c)
	if err := serveAttached(ctx, c.Writer, c.Request, attachConfig{Heartbeat: s.cfg.Heartbeat, Stall: s.cfg.StallTimeout}, process); err != nil {
		s.log.InfoContext(ctx, "the attachment to a process broke off", slog.String("request_id", rest.RequestID(c)), slog.Any("error", err))
	}
	return nil
}
