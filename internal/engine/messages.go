package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	tailLines   = 20      // of a build's output go into its error
	lineMax     = 4 << 10 // of one line are kept
	progressMax = 300     // of one line are reported as progress
)

// colour matches terminal control sequences.
var colour = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// step matches the classic builder's announcement of a step.
var step = regexp.MustCompile(`^Step (\d+)/(\d+) :`)

// follow reads the engine's messages about a build, pull or import to their end, and closes the body. It returns the error that a message
// carries, with the last lines of output before it.
func follow(body io.ReadCloser, err error, progress func(farm.Progress)) error {
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // it was read to its end, or its error is returned
	if progress == nil {
		progress = func(farm.Progress) {}
	}
	var f follower
	decoder := json.NewDecoder(body)
	for {
		var m jsonmessage.JSONMessage
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read engine's messages: %w", err)
		}
		if m.Error != nil {
			return f.failed(m.Error)
		}
		f.take(m, progress)
	}
}

// follower keeps the progress of a build.
type follower struct {
	done, total float64
	tail        []string
}

// take handles one message.
func (f *follower) take(m jsonmessage.JSONMessage, progress func(farm.Progress)) {
	text := m.Stream
	if text == "" {
		text = m.Status
		if m.ID != "" {
			text = m.ID + ": " + text
		}
	}
	for line := range strings.SplitSeq(colour.ReplaceAllString(text, ""), "\n") {
		line = strings.ToValidUTF8(strings.TrimSpace(line[strings.LastIndex(strings.TrimRight(line, "\r"), "\r")+1:]), "�")
		if line == "" {
			continue
		}
		line = line[:min(len(line), lineMax)]
		f.tail = append(f.tail[max(0, len(f.tail)-tailLines+1):], line)
		if match := step.FindStringSubmatch(line); match != nil {
			done, _ := strconv.Atoi(match[1]) // cannot fail: the expression matches digits
			total, _ := strconv.Atoi(match[2])
			f.done, f.total = float64(done-1), float64(total)
		}
		progress(farm.Progress{Message: strings.ToValidUTF8(line[:min(len(line), progressMax)], ""), Done: f.done, Total: f.total})
	}
}

// failed returns the error of a message with the last lines of output.
func (f *follower) failed(e *jsonmessage.JSONError) error {
	if len(f.tail) == 0 {
		return errors.New(e.Message)
	}
	return fmt.Errorf("%s; its last lines were:\n%s", e.Message, strings.Join(f.tail, "\n"))
}
