package farmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/store"
)

// errUnhealthy ends doctor with exit code 1 when it found a problem.
var errUnhealthy = errors.New("there are problems: fix them as described above")

// farmTimeout bounds the questions to the farm that runs: all answers are at hand.
const farmTimeout = 10 * time.Second

func doctorCommand(load loader, connect verbs.Connect, streams verbs.Streams) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", SuggestFor: []string{"status", "info"},
		Short: "Check everything that a farm needs, and say what to do about each problem",
		Long: `Checks two things. First the farm that the other commands talk to, at --url or SANDFARM_URL, or else at api.listen of the settings:
whether it answers, works and accepts the key. Then this machine, with the settings of this folder: whether a farm can run
here, and whether one does. The second is about the first only if that farm runs on this machine with these settings.`,
		Example: "  sandfarm doctor\n  SANDFARM_DATA=/var/lib/sandfarm sandfarm doctor --config sandfarm.toml",
		Args:    cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *Settings) error {
			farm := doctorFarm(cmd.Context(), s, connect)
			findings := append([]Finding{farm, doctorSettings(s, farm.Status == StatusOK)}, Doctor(cmd.Context(), s)...)
			if cmd.Flag("json") != nil && cmd.Flag("json").Value.String() == "true" {
				out := json.NewEncoder(streams.Out)
				out.SetIndent("", "  ")
				if err := out.Encode(findings); err != nil {
					return fmt.Errorf("print findings: %w", err)
				}
			} else {
				printFindings(streams, findings)
			}
			for _, f := range findings {
				if f.Status == StatusProblem {
					return errUnhealthy
				}
			}
			return nil
		}),
	}
}

// doctorFarm looks at the farm that the verbs of clients talk to. That none runs is no problem: this may be before its first start.
func doctorFarm(ctx context.Context, s *Settings, connect verbs.Connect) Finding {
	f := Finding{What: "farm", Status: StatusOK}
	here, err := apiURL(s.API.Listen)
	if err != nil {
		f.Status, f.Found, f.Advice = StatusProblem, err.Error(), "Correct api.listen."
		return f
	}
	c, err := connect(here)
	if err != nil {
		f.Status, f.Found = StatusProblem, verbs.Sentence(err, "")
		return f
	}
	ctx, done := context.WithTimeout(ctx, farmTimeout)
	defer done()
	if err := c.Health(ctx); err != nil {
		f.Status, f.Found = StatusNote, verbs.Sentence(err, c.URL())
		return f
	}
	if err := c.Ready(ctx); err != nil {
		f.Status, f.Found = StatusProblem, "the farm at "+c.URL()+" answers, but it cannot do work"
		f.Advice = "GET " + c.URL() + "/readyz names the part that fails, and so does the log of the farm."
		return f
	}
	if _, err := c.Limits(ctx); err != nil {
		if e, ok := errors.AsType[*client.Error](err); ok && e.Status == http.StatusUnauthorized && noKeys(ctx, s) {
			f.Status, f.Found = StatusNote, "the farm at "+c.URL()+" works, and has no key yet"
			f.Advice = "Make the first one with these settings: `sandfarm key create --local --tenant NAME --scope admin --scope run`."
			return f
		}
		f.Status, f.Found, f.Advice = StatusProblem, "the farm at "+c.URL()+" works, but not for you", verbs.Sentence(err, c.URL())
		return f
	}
	f.Found = "the farm at " + c.URL() + ", which the other commands talk to, works"
	return f
}

// noKeys reports whether the farm of the settings has no key. It is false where its Redis is not known or does not answer.
func noKeys(ctx context.Context, s *Settings) bool {
	none := false
	err := withStore(s, func(st *store.Store) error {
		keys, err := st.Keys(ctx)
		none = len(keys) == 0
		return err
	})
	return err == nil && none && len(s.API.Keys) == 0
}

// doctorSettings says what the findings after it are about. works means that doctorFarm has found a farm.
func doctorSettings(s *Settings, works bool) Finding {
	f := Finding{What: "this machine", Status: StatusOK, Found: "what follows is about this machine and the data directory " + s.Data}
	switch {
	case Runs(s):
		f.Found += ", on which a farm runs"
	case s.Redis.URL != "" && s.S3.Endpoint != "":
		f.Found = "what follows is about this machine, as a host of the farm whose parts share redis.url and s3.endpoint"
	case works:
		f.Status, f.Found = StatusNote, f.Found+", on which no farm runs"
		f.Advice = "It is about the farm that `sandfarm up` would start here. If the one above runs on this machine, run doctor in its folder, or with its --config and SANDFARM_DATA."
	default:
		f.Found += ", on which no farm runs"
	}
	return f
}

func printFindings(streams verbs.Streams, findings []Finding) {
	t := tabwriter.NewWriter(streams.Out, 0, 4, 2, ' ', 0)
	for _, f := range findings {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\n", f.Status, f.What, f.Found)
		if f.Advice != "" {
			_, _ = fmt.Fprintf(t, "\t\t→ %s\n", f.Advice)
		}
	}
	_ = t.Flush()
}
