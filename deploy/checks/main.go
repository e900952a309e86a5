// Command checks runs this project's checks, and says how they ended.
//
//	checks test [-rerun] [-skips] [-packages "…"] -- FLAGS    runs go test by gotestsum, and judges what it reports
//	checks steps [-limit 25m] [-page FILE] TARGET…            makes targets one after the other
//
// "checks test" is red when a test fails, when a test is skipped (a check that did not run must not look like one that passed; -skips
// allows it), and when nothing was tested. With -rerun a test that fails runs once more, alone: if it passes then, it is reported as FLAKY,
// with both outputs, unless it may never be flaky (see mayNeverBeFlaky); more than maxFlaky of them are red.
//
// "checks steps" stops at the first target that fails, and prints the seconds of each. With -page it goes on, and writes a row for each target into the page.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "checks: %v\n", err)
		code = 2
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return 0, fmt.Errorf("name what to do: test or steps")
	}
	flags := flag.NewFlagSet("checks "+args[0], flag.ContinueOnError)
	switch args[0] {
	case "test":
		s := suite{out: os.Stdout}
		flags.BoolVar(&s.rerun, "rerun", false, "run a test that failed once more, alone")
		flags.BoolVar(&s.skips, "skips", false, "allow tests to be skipped")
		packages := flags.String("packages", "./...", "the packages, separated by white space")
		if err := flags.Parse(args[1:]); err != nil {
			return 2, nil // the flag set has printed it
		}
		s.packages, s.flags = strings.Fields(*packages), flags.Args()
		return s.run(ctx)
	case "steps":
		s := stepper{out: os.Stdout}
		flags.DurationVar(&s.limit, "limit", 0, "how long all targets may take together; 0: without limit")
		flags.DurationVar(&s.each, "each", 0, "how long one target may take; 0: without limit")
		flags.StringVar(&s.page, "page", "", "go on after a target that fails, and write a row for each into this page")
		if err := flags.Parse(args[1:]); err != nil {
			return 2, nil // the flag set has printed it
		}
		if err := checkFlakyList(filepath.Join("deploy", "flaky.txt"), time.Now()); err != nil {
			return 0, err
		}
		return s.run(ctx, flags.Args())
	default:
		return 0, fmt.Errorf("%q is neither test nor steps", args[0])
	}
}
