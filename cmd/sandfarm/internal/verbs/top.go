package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// snapshot is what top shows: workers and queues at one time, and the last hour, for who may see it.
type snapshot struct {
	Workers []wire.Worker `json:"workers"`
	Queues  []wire.Queue  `json:"queues"`

	Activity []wire.Minute `json:"activity,omitempty"`
	partial  bool          // what the caller may not see is left out
}

// topTimeout bounds one request of a snapshot.
const topTimeout = 10 * time.Second

func (a *app) top() *cobra.Command {
	var every time.Duration
	var once bool
	c := a.verb(&cobra.Command{
		Use: "top", Short: "Watch the workers and queues of the farm", SuggestFor: []string{"status", "info"},
		Long: `Shows the queues and workers of the farm and, to keys with the scope admin, the jobs of the last hour. It refreshes every
two seconds, until you press q or Ctrl-C. If the output is not a terminal, or with --once, it prints one page as plain text.
RESERVED is what the sandboxes of a worker may use together, of what it gives to sandboxes: with worker.memory_overcommit or
worker.cpu_overcommit more than the host has. To a key without the scope admin it shows the caller's part of the farm.`,
		Example:           "  sandfarm top\n  sandfarm top --once",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		if every < 100*time.Millisecond {
			return usagef("--every is %s; it must be at least 100ms", every)
		}
		if a.json {
			found, err := look(ctx, c)
			if err != nil {
				return err
			}
			return a.print(found)
		}
		screen, restore := a.screen()
		if once || screen == nil {
			found, err := look(ctx, c)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.Out, plain(page(c.URL(), found, time.Now())))
			return err
		}
		defer restore()
		screen.watch(ctx, c, every)
		return nil
	})
	c.Flags().DurationVar(&every, "every", 2*time.Second, "time between refreshes")
	c.Flags().BoolVar(&once, "once", false, "print one page and exit")
	return c
}

// look fetches a snapshot.
func look(ctx context.Context, c *client.Client) (snapshot, error) {
	ctx, done := context.WithTimeout(ctx, topTimeout)
	defer done()
	queues, err := c.Queues(ctx)
	if err != nil {
		return snapshot{}, err
	}
	workers, err := c.Workers(ctx)
	if err != nil {
		return snapshot{}, err
	}
	activity, err := c.Activity(ctx)
	if err != nil && !hidden(err) {
		return snapshot{}, err
	}
	named := slices.ContainsFunc(workers, func(w wire.Worker) bool { return w.Host != "" }) // keys of the settings may see the fleet without the scope
	return snapshot{Workers: workers, Queues: queues, Activity: activity, partial: client.CodeOf(err) == "unauthorized" && !named}, nil
}

// screen is a terminal that shows one page after another. It uses control sequences that every current terminal knows, so it
// needs no library beside golang.org/x/term.
type screen struct {
	out  io.Writer
	keys <-chan byte // pressed keys; nil: no keyboard
	size func() (width, height int)
}

// Control sequences.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	bold        = "\x1b[1m"
	red         = "\x1b[31m"
	plainStyle  = "\x1b[0m"
	ctrlC       = 3
)

// screen is the terminal of the output, and a function that restores it; nil if the output is not a terminal.
func (a *app) screen() (*screen, func()) {
	out, ok := a.Out.(*os.File)
	if !ok || !term.IsTerminal(int(out.Fd())) || a.Getenv("TERM") == "dumb" {
		return nil, nil
	}
	restore, ok := controlSequences(out)
	if !ok {
		return nil, nil
	}
	s := &screen{out: out, size: func() (int, int) {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}}
	if in, ok := a.In.(*os.File); ok && a.IsTTY {
		if before, err := term.MakeRaw(int(in.Fd())); err == nil {
			restoreOutput := restore
			restore = func() { _ = term.Restore(int(in.Fd()), before); restoreOutput() }
			s.keys = pressed(in)
		}
	}
	return s, restore
}

// pressed reads keys byte by byte. Its goroutine ends with the process, since a read from a terminal cannot be interrupted.
func pressed(in io.Reader) <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		var one [1]byte
		for {
			if n, err := in.Read(one[:]); err != nil || n == 0 {
				return
			}
			keys <- one[0]
		}
	}()
	return keys
}

// watch shows pages until a key or ctx ends it. While the farm does not answer, the last page stays, with the error above.
func (s *screen) watch(ctx context.Context, c *client.Client, every time.Duration) {
	_, _ = io.WriteString(s.out, enterScreen)
	defer func() { _, _ = io.WriteString(s.out, leaveScreen) }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last snapshot
	for {
		found, err := look(ctx, c)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			last = found
		}
		lines := page(c.URL(), last, time.Now())
		if err != nil {
			lines = append([]line{{text: cell("The farm does not answer; retrying. " + err.Error()), style: red}, {}}, lines...)
		}
		s.show(lines)
		if !s.wait(ctx, tick.C) {
			return
		}
	}
}

// wait waits until the next page is due. It reports false if the user or ctx ends the display.
func (s *screen) wait(ctx context.Context, next <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-next:
			return true
		case key, ok := <-s.keys:
			switch {
			case !ok:
				s.keys = nil
			case key == 'q' || key == ctrlC:
				return false
			case key == ' ':
				return true
			}
		}
	}
}

// show writes a page over the previous one, cut to the size of the terminal.
func (s *screen) show(lines []line) {
	width, height := s.size()
	text := home
	for i, l := range lines {
		if i == height-1 && len(lines) > height {
			text += fmt.Sprintf("… %d more lines", len(lines)-i) + clearLine
			break
		}
		text += l.style + cut(l.text, width) + plainStyle + clearLine
		if i < len(lines)-1 {
			text += "\r\n"
		}
	}
	_, _ = io.WriteString(s.out, text+clearBelow)
}

// cut shortens a line to width columns.
func cut(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(width-1, 0)]) + "…"
}

// hidden reports whether the key lacks a scope, or the farm is of a release without the route.
func hidden(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && (e.Status == http.StatusForbidden || e.Status == http.StatusNotFound)
}
