package verbs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const (
	submitTimeout = 90 * time.Second // to get the id of the job even after Ctrl-C: without it the job cannot be canceled
	cancelTimeout = 15 * time.Second // for a canceled job to end; code that ignores the interrupt takes a few seconds
)

// follower prints the output of a running job and counts how much of each stream it has printed.
type follower struct {
	*app
	c        *client.Client
	results  bool   // also print the text of results
	quiet    bool   // print nothing
	mute     bool   // print no output, only progress
	toStderr bool   // print the output on stderr, since stdout is for something else
	progress bool   // print progress on stderr
	reported string // the last progress
	printed  map[string]int64
	clearing bool    // clear when there is more output
	values   int     // that were displayed: the next number, from 0
	canvas   *canvas // nil: stdout is not a terminal
}

func (a *app) follower(c *client.Client, results bool) *follower {
	return &follower{app: a, c: c, results: results, quiet: a.json, printed: map[string]int64{}}
}

// do submits a job, prints its output and returns it once it is final. When ctx ends the job is canceled: its output until
// then is still printed, and the error is that of ctx.
func (f *follower) do(ctx context.Context, submit func(context.Context) (wire.Job, error)) (wire.Job, error) {
	submitting, release := context.WithTimeout(context.WithoutCancel(ctx), submitTimeout)
	job, err := submit(submitting)
	release()
	if err != nil {
		return job, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	canceled := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		canceled <- f.cancel(life, job.ID)
		timer := time.AfterFunc(cancelTimeout, end)
		context.AfterFunc(life, func() { timer.Stop() })
	})
	id := job.ID
	err = f.stream(life, id, "")
	if err == nil {
		job, err = f.c.Wait(life, id)
		err = goesOn(id, err)
	}
	if !stop() { // Ctrl-C came
		if failed := <-canceled; failed != nil {
			return job, fmt.Errorf("cancel job %s: %w", job.ID, goesOn(job.ID, failed))
		}
		return job, context.Canceled
	}
	return job, err
}

func (f *follower) cancel(ctx context.Context, id string) error {
	fmt.Fprintln(f.Err, "sandfarm: canceling the job (Ctrl-C again leaves at once)")
	ctx, done := context.WithTimeout(ctx, cancelTimeout)
	defer done()
	_, err := f.c.Cancel(ctx, id)
	if client.CodeOf(err) == "conflict" { // it has ended meanwhile
		return nil
	}
	return err
}

// stream prints the events of a job until its end.
func (f *follower) stream(ctx context.Context, id, after string) error {
	if !f.quiet && !f.toStderr {
		var restore func()
		f.canvas, restore = f.app.canvas()
		defer restore()
	}
	begins := f.whileQueued(ctx, f.c, id)
	defer begins()
	for event, err := range f.c.Events(ctx, id, after) {
		if err != nil {
			return goesOn(id, err)
		}
		if state := (wire.StateData{}); event.Name == "state" && json.Unmarshal(event.Data, &state) == nil && state.State != "queued" {
			begins()
		}
		if f.quiet {
			continue
		}
		if err := f.show(ctx, event); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) show(ctx context.Context, event wire.Event) error {
	switch event.Name {
	case "stdout", "stderr":
		var data wire.TextData
		if err := json.Unmarshal(event.Data, &data); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		if f.mute {
			return nil
		}
		if err := f.clearNow(); err != nil {
			return err
		}
		f.printed[event.Name] += int64(len(data.Text))
		return f.write(f.writer(event.Name), data.Text)
	case "display":
		var data wire.DisplayData
		if err := json.Unmarshal(event.Data, &data); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		if data.Display >= f.values { // an update is no new output
			f.values = data.Display + 1
			if err := f.clearNow(); err != nil {
				return err
			}
		}
		return f.display(ctx, data)
	case "clear":
		var data wire.ClearData
		if err := json.Unmarshal(event.Data, &data); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		if f.clearing = true; !data.Wait {
			return f.clearNow()
		}
	case "progress":
		var data wire.ProgressData
		if err := json.Unmarshal(event.Data, &data); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		f.printProgress(data)
	}
	return nil
}

// clearNow clears the output if the code wants that: on a terminal it disappears.
func (f *follower) clearNow() error {
	if !f.clearing {
		return nil
	}
	f.clearing = false
	if f.canvas == nil {
		return nil
	}
	return f.canvas.clear()
}

func (f *follower) write(to io.Writer, text string) error {
	if f.canvas != nil {
		return f.canvas.write(to, text)
	}
	_, err := io.WriteString(to, text)
	return err
}

// printProgress prints the progress of the job, each message once.
func (f *follower) printProgress(data wire.ProgressData) {
	text := strings.TrimSpace(printable(data.Message))
	if !f.progress || text == "" || text == f.reported {
		return
	}
	f.reported = text
	_ = f.write(f.Err, "sandfarm: "+text+"\n")
}

func (f *follower) writer(name string) io.Writer {
	if name == "stderr" || f.toStderr {
		return f.Err
	}
	return f.Out
}

// figureText is the text that matplotlib adds to its images. It has no information.
var figureText = regexp.MustCompile(`^<Figure size [\d.]+x[\d.]+ with \d+ Axes>$`)

// display prints the text of a result. Its other formats are saved as files, see saver.
func (f *follower) display(ctx context.Context, data wire.DisplayData) error {
	if !f.results || data.Mime != "text/plain" {
		return nil
	}
	text := data.Data
	if text == "" && data.URL != "" {
		content, err := f.c.Fetch(ctx, data.URL, 0)
		var refused *client.Error
		if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
			return nil // the code has replaced the value meanwhile
		}
		if err != nil {
			return err
		}
		defer content.Close()
		f.canvas = nil // what is that long is not drawn again
		_, err = io.Copy(f.Out, content)
		return err
	}
	if figureText.MatchString(text) {
		return nil
	}
	text = strings.TrimSuffix(text, "\n") + "\n"
	if f.canvas != nil {
		return f.canvas.show(data.Display, text)
	}
	return f.write(f.Out, text)
}

// outputDir is where the farm stores outputs that are too long for events. It is not part of the workspace.
const outputDir = ".output/"

// rest prints the part of a stream that was too long for events.
func (f *follower) rest(ctx context.Context, artifacts []wire.Artifact, stream string) error {
	if f.quiet {
		return nil
	}
	for _, artifact := range artifacts {
		if artifact.Path != outputDir+stream+".txt" && artifact.Path != outputDir+"1-"+stream+".txt" {
			continue
		}
		if artifact.Size <= f.printed[stream] {
			return nil
		}
		content, err := f.c.DownloadFrom(ctx, artifact, f.printed[stream])
		if err != nil {
			return fmt.Errorf("read the rest of %s: %w", stream, err)
		}
		defer content.Close()
		n, err := io.Copy(f.writer(stream), content)
		f.printed[stream] += n
		return err
	}
	return nil
}

const (
	waitsAfter = 4 * time.Second  // until it is said what a queued job waits for; most begin at once
	waitsEvery = 10 * time.Second // until it is looked at again
)

// whileQueued says on stderr what a job waits for, as long as it is queued: after a while, and when it changes. stop ends that, and returns when
// nothing more is printed; it may be called again.
func (a *app) whileQueued(ctx context.Context, c *client.Client, id string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over, after := make(chan struct{}), a.After
	if after == nil {
		after = time.After
	}
	go func() {
		defer close(over)
		reported := ""
		for pause := waitsAfter; ; pause = waitsEvery {
			select {
			case <-ctx.Done():
				return
			case <-after(pause):
			}
			job, err := c.Job(ctx, id)
			if err != nil && ctx.Err() == nil {
				continue // whoever waits for the job meets the error, too
			}
			if err != nil || job.State != "queued" {
				return
			}
			if job.Waiting != nil && job.Waiting.Message != reported {
				reported = job.Waiting.Message
				fmt.Fprintf(a.Err, "sandfarm: %s waits: %s\n", id, asFlags(reported))
			}
		}
	}()
	return func() { cancel(); <-over }
}

// wait waits for the end of a job, and says what it waits for.
func (a *app) wait(ctx context.Context, c *client.Client, id string) (wire.Job, error) {
	defer a.whileQueued(ctx, c, id)()
	job, err := c.Wait(ctx, id)
	return job, goesOn(id, err)
}

// goesOn adds to the error of following a job that the job goes on, if that is because the farm does not answer.
func goesOn(id string, err error) error {
	text := "the farm does not answer"
	switch e, answered := errors.AsType[*client.Error](err); {
	case err == nil || errors.Is(err, context.Canceled):
		return err
	case answered && e.Status < http.StatusInternalServerError:
		return err
	case answered:
		text = strings.TrimSuffix(sentence(err), ".")
	}
	return &hint{err: err, text: fmt.Sprintf("%s; the job %s goes on: sandfarm job events %s", text, id, id)}
}
