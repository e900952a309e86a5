package execution

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// silentNode is a node whose engine does not answer before a time.
type silentNode struct{ until time.Time }

func (silentNode) Connect(context.Context, *farm.Sandbox) (*client.Client, error) {
	return nil, errUnreachable
}
func (silentNode) Gone(context.Context, *farm.Sandbox) (error, bool) { return nil, false } //nolint:revive // as Node
func (n silentNode) Answers(context.Context) bool                    { return !time.Now().Before(n.until) }
func (silentNode) Connected(string) bool                             { return false }

var errUnreachable = farm.Errorf(farm.CodeUnavailable, "no way to the sandbox")

// A job waits for its sandbox as long as the engine is silent, up to EngineTimeout, and for attachFor while the engine answers. It used to fail after
// attachFor, while the sandbox ran on behind an API server that was being updated.
func TestReattachWhileTheEngineIsSilent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		silent, unreachable, gaveUp time.Duration // gaveUp 0: it did not
	}{
		"EngineComesBack":   {9 * time.Minute, 9*time.Minute + 30*time.Second, 0},
		"EngineAnswers":     {0, time.Hour, attachFor},
		"SandboxStaysAway":  {5 * time.Minute, time.Hour, 5*time.Minute + attachFor},
		"EngineStaysSilent": {time.Hour, time.Hour, 10*time.Minute + attachFor},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				x := &Runner{cfg: Config{EngineTimeout: 10 * time.Minute}, node: silentNode{began.Add(c.silent)}, log: slog.New(slog.DiscardHandler)}
				err := x.reattach(t.Context(), &farm.Sandbox{}, "job_x", func() (bool, error) {
					if time.Since(began) < c.unreachable {
						return false, errUnreachable
					}
					return true, nil
				})
				took := time.Since(began)
				if (err != nil) != (c.gaveUp > 0) || c.gaveUp > 0 && (took < c.gaveUp || took > c.gaveUp+time.Second) {
					t.Errorf("%v after %s, want an end after %s", err, took, c.gaveUp)
				}
			})
		})
	}
}
