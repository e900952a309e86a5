// Command testsum reads the output of "go test -json" and prints a readable form: a line for each package, the complete output of
// failed tests, and a summary. It exits with 1 when a test or a package failed, when nothing was tested, and with -noskip when a
// test was skipped: a check that did not run must not look like one that passed.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	noSkip := flag.Bool("noskip", false, "count a skipped test as a failure")
	flag.Parse()
	os.Exit(run(os.Stdin, os.Stdout, *noSkip, time.Now))
}

// run reads events until the end and returns the exit code.
func run(in io.Reader, out io.Writer, noSkip bool, now func() time.Time) int {
	began := now()
	s := newSummary(out)
	if err := s.read(in); err != nil {
		_, _ = fmt.Fprintf(out, "testsum: %v\n", err)
		return 1
	}
	return s.finish(now().Sub(began), noSkip)
}
