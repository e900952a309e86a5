package verbs

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// standing is what top shows: who serves the farm, and what waits.
type standing struct {
	Workers []wire.Worker `json:"workers"`
	Queues  []wire.Queue  `json:"queues"`
}

// topTimeout bounds a look at the farm: a page that is older says so.
const topTimeout = 10 * time.Second

func (a *app) top() *cobra.Command {
	var every time.Duration
	var once bool
	c := a.verb(&cobra.Command{
		Use: "top", Short: "Watch who serves the farm, what waits, and how far behind it is",
		Long: `Shows the farm's queues and workers in the terminal and looks again every two seconds, until q or Ctrl-C is pressed.
Where the output is no terminal, and with --once, it prints one page as plain text.`,
		Example:           "  sandfarm top\n  sandfarm top --once",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		if every < 100*time.Millisecond {
			return usagef("--every is %s; at least 100ms is needed", every)
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
	c.Flags().DurationVar(&every, "every", 2*time.Second, "how often the farm is asked")
	c.Flags().BoolVar(&once, "once", false, "print one page and end")
	return c
}

// look asks the farm for what top shows.
func look(ctx context.Context, c *client.Client) (standing, error) {
	ctx, done := context.WithTimeout(ctx, topTimeout)
	defer done()
	queues, err := c.Queues(ctx)
	if err != nil {
		return standing{}, err
	}
	workers, err := c.Workers(ctx)
	if err != nil {
		return standing{}, err
	}
	return standing{Workers: workers, Queues: queues}, nil
}

// screen is a terminal that shows one page after the other. The sequences that it takes are those that every terminal of
// today knows; a page of text that is written anew needs no library beside golang.org/x/term.
type screen struct {
	out  io.Writer
	keys <-chan byte // what is pressed; nil: nobody can press anything
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

// screen gives the terminal that the output is; nil when it is none. What it gives second puts the terminal back.
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

// pressed gives what is read, byte by byte. Its goroutine ends with the process: a read of a terminal cannot be ended.
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

// watch shows page after page until a key or ctx ends it. A farm that does not answer leaves the last page, with the error.
func (s *screen) watch(ctx context.Context, c *client.Client, every time.Duration) {
	_, _ = io.WriteString(s.out, enterScreen)
	defer func() { _, _ = io.WriteString(s.out, leaveScreen) }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last standing
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
			lines = append([]line{{text: cell("The farm does not answer; it is asked again. " + err.Error()), style: red}, {}}, lines...)
		}
		s.show(lines)
		if !s.wait(ctx, tick.C) {
			return
		}
	}
}

// wait waits for the next page. It reports whether one is wanted.
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

// show writes a page over the one before, cut to the terminal.
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

// cut is the beginning of a line that has a place in width columns.
func cut(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(width-1, 0)]) + "…"
}
