package execution

import "github.com/sandfarm/sandfarm/internal/farm"

// outputDir begins the paths of artifacts that are not files of the workspace: whole outputs and large displays.
const outputDir = ".output/"

// output is the pair of streams of an execute or of one command.
type output struct {
	prefix         string // of the names of its artifacts
	stdout, stderr *sink
}

// sink is a stream whose whole is an artifact when it is longer than the record takes.
type sink struct {
	*stream
	name    farm.EventName
	path    string // of the artifact
	sent    int    // bytes sent as events
	stopped bool
	dropped int64 // bytes that exceeded limits.MaxOutputMB and are kept nowhere
}

// text returns the stream for the record.
func (s *sink) text() string {
	if s.dropped > 0 {
		return s.stream.text("what was kept of the output is the artifact " + s.path)
	}
	return s.stream.text("the whole output is the artifact " + s.path)
}

// truncated reports whether the record lacks a part of the stream. Then an artifact has what was kept of it.
func (s *sink) truncated() bool { return s.stream.truncated() || s.dropped > 0 }

func (c *collector) newOutput(prefix string) *output {
	return &output{
		prefix: prefix,
		stdout: &sink{stream: newStream(c.limits.MaxStreamInline), name: farm.EventStdout, path: outputDir + prefix + "stdout.txt"},
		stderr: &sink{stream: newStream(c.limits.MaxStreamInline), name: farm.EventStderr, path: outputDir + prefix + "stderr.txt"},
	}
}
