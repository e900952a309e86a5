package mcp

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// quietFarm runs for a while without output.
type quietFarm struct {
	Farm
	ends   time.Time
	events bool
}

func (f quietFarm) job() wire.Job {
	j := wire.Job{ID: "job_1", Kind: "execute", SandboxID: "sbx_1", State: "running"}
	if !time.Now().Before(f.ends) {
		j.State, j.Result = "completed", &wire.Result{Execute: &wire.ExecuteResult{}}
	}
	return j
}

func (f quietFarm) Execute(context.Context, string, wire.ExecuteRequest, time.Duration) (wire.Job, error) {
	return f.job(), nil
}

func (f quietFarm) Job(_ context.Context, _ string, wait time.Duration) (wire.Job, error) {
	time.Sleep(max(0, min(wait, time.Until(f.ends))))
	return f.job(), nil
}

func (f quietFarm) Events(ctx context.Context, _ string) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		if !f.events {
			yield(wire.Event{}, errors.New("no events"))
			return
		}
		select {
		case <-time.After(time.Until(f.ends)):
			yield(wire.Event{Name: "state", Data: []byte(`{"state":"completed"}`)}, nil)
		case <-ctx.Done():
		}
	}
}

type listener struct{ notes chan mcp.JSONRPCNotification }

func (l listener) SessionID() string                                   { return "" }
func (l listener) Initialize()                                         {}
func (l listener) Initialized() bool                                   { return true }
func (l listener) NotificationChannel() chan<- mcp.JSONRPCNotification { return l.notes }

// A proxy cuts a connection that is idle for a while, so a waiting call sends progress.
func TestQuietCallsSendProgress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		runs   time.Duration
		events bool
		took   time.Duration
		state  string
	}{
		"Ends":            {30 * time.Second, true, 30 * time.Second, "completed"},
		"GoesOn":          {time.Hour, true, 45*time.Second + readQuiet, "running"}, // the end of it reads what was printed
		"EndsNoEvents":    {30 * time.Second, false, 30 * time.Second, "completed"},
		"GoesOnNoEvents":  {time.Hour, false, 45 * time.Second, "running"},
		"EndsAtTheBorder": {45 * time.Second, true, 45 * time.Second, "completed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				f := quietFarm{ends: begun.Add(c.runs), events: c.events}
				s, err := New(Options{Farm: func(context.Context) Farm { return f }})
				if err != nil {
					t.Fatal(err)
				}
				to := listener{make(chan mcp.JSONRPCNotification, 1000)}
				ctx := withDelivery(s.mcp.WithContext(t.Context(), to), newDelivery())
				var r mcp.CallToolRequest
				r.Params.Arguments = map[string]any{"sandbox_id": "sbx_1", "code": "1"}
				r.Params.Meta = &mcp.Meta{ProgressToken: "t"}
				done := make(chan *mcp.CallToolResult)
				go func() {
					result, _ := s.handle(executePython())(ctx, r)
					done <- result
				}()
				for last := begun; ; {
					select {
					case <-to.notes:
						if gap := time.Since(last); gap > 10*time.Second {
							t.Errorf("nothing for %s", gap)
						}
						last = time.Now()
						continue
					case result := <-done:
						if got := result.StructuredContent.(map[string]any)["state"]; got != c.state && c.runs != c.took || time.Since(begun) != c.took || time.Since(last) > 10*time.Second {
							t.Errorf("%v after %s, %s after the last sign", got, time.Since(begun), time.Since(last))
						}
					}
					break
				}
			})
		})
	}
}

var _ server.ClientSession = listener{}

// The protocol requires increasing values, also within a millisecond.
func TestProgressAlwaysIncreases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := listener{make(chan mcp.JSONRPCNotification, 100)}
		p := newProgress(withDelivery(server.NewMCPServer("test", "1").WithContext(t.Context(), to), newDelivery()), "t")
		last := -1.0
		for i := range 100 {
			if i == 50 {
				time.Sleep(20 * time.Millisecond) // less than the values are ahead of the clock
			}
			p.tell("x")
			note := <-to.notes
			value, _ := note.Params.AdditionalFields["progress"].(float64)
			if value <= last {
				t.Fatalf("message %d has %g after %g", i, value, last)
			}
			last = value
		}
	})
}

// A token is repeated in each message: a token of some MiB would cost hundreds of MiB for one call.
func TestTokensAreBounded(t *testing.T) {
	t.Parallel()
	for _, good := range []any{"t", strings.Repeat("t", tokenMax), 1.5, 7, int64(7)} {
		if !goodToken(good) {
			t.Errorf("%.20v is refused", good)
		}
	}
	for _, bad := range []any{nil, strings.Repeat("t", tokenMax+1), []any{"t"}, map[string]any{"t": 1}, true} {
		if goodToken(bad) {
			t.Errorf("%.20v is taken", bad)
		}
	}
}

// Progress has the last state of an animation, not each of them.
func TestProgressHasTheLastState(t *testing.T) {
	t.Parallel()
	l := &live{}
	for _, e := range []struct{ name, data string }{
		{"stdout", `{"text":"step 1\n"}`},
		{"clear", `{"wait":true}`},
		{"stdout", `{"text":"step 2\n"}`},
		{"display", `{"display":0,"mime":"image/png"}`},
		{"display", `{"display":0,"mime":"image/png","update":true}`},
		{"clear", `{"wait":true}`},
		{"clear", `{"wait":false}`},
	} {
		l.take(wire.Event{Name: e.name, Data: []byte(e.data)})
	}
	if got := l.pending.String(); got != "step 2\n[a picture, image/png]\n" {
		t.Errorf("pending %q", got)
	}
	l.take(wire.Event{Name: "stdout", Data: []byte(`{"text":"done"}`)})
	if got := l.pending.String(); got != "done" {
		t.Errorf("pending %q", got)
	}
}

// A running job may have printed in 100,000 pieces, and the commands of one may be 256: to copy what came before for each took seconds.
func TestOutputIsNotCopiedForEachPiece(t *testing.T) { // not parallel: it counts what the process allocates
	const pieces, limit = 10_000, 32 << 10
	var p printed
	allocated := testing.AllocsPerRun(1, func() {
		for range pieces {
			p.add("0123456789012345678901234567890123456789012345678\n", limit)
		}
	})
	shown, cut := p.cut(limit)
	testbed.Check(t, allocated < 100 && cut && strings.HasPrefix(shown, "0123") && strings.HasSuffix(shown, "678\n"), "%.0f allocations for %d pieces, %q … %q",
		allocated, pieces, shown[:10], shown[len(shown)-10:])

	job := &wire.Job{Result: &wire.Result{Command: &wire.CommandResult{}}}
	for range 256 {
		job.Result.Command.Results = append(job.Result.Command.Results, wire.CommandOutcome{Stdout: "out\n", Stderr: "err\n"})
	}
	var out *runOutcome
	allocated = testing.AllocsPerRun(1, func() { out = outcomeOf(job) })
	testbed.Check(t, allocated < 100 && out.stdout == strings.Repeat("out\n", 256) && out.stderr == strings.Repeat("err\n", 256), "%.0f allocations for 256 commands, %q, %q", allocated, out.stdout, out.stderr)
}
