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
}

// text returns the stream for the record.
func (s *sink) text() string { return s.stream.text("the whole output is the artifact " + s.path) }

func (c *collector) newOutput(prefix string) *output {
	return &output{
		prefix: prefix,
		stdout: &sink{stream: newStream(c.limits.MaxStreamInline), name: farm.EventStdout, path: outputDir + prefix + "stdout.txt"},
		stderr: &sink{stream: newStream(c.limits.MaxStreamInline), name: farm.EventStderr, path: outputDir + prefix + "stderr.txt"},
	}
}
