// Command deploy is what the Makefile and setup.sh run to check, build and install the farm. It runs in the root of the repository.
//
//	deploy test [-rerun] [-skips] [-packages "…"] -- FLAGS    runs go test by gotestsum, and judges what it reports
//	deploy steps [-limit 25m] [-page FILE] TARGET…            makes targets one after the other
//	deploy dist [-only linux/amd64,…]                         writes the release archives
//	deploy gvisor -runsc FILE                                 installs gVisor's runtime and registers it in the Docker engine of this machine
//	deploy image NAME                                         builds a sandbox image and its base, as `sandfarm up` does
//	deploy skewed -o FILE PACKAGE                             builds a program whose clock a test can shift
//	deploy count                                              counts files and lines of Go by room, settings, and words of the glossary
//
// "test" is red when a test fails, when a test is skipped (a check that did not run must not look like one that passed; -skips
// allows it), and when nothing was tested. With -rerun a test that fails runs once more, alone: if it passes then, it is reported as FLAKY,
// with both outputs, unless it may never be flaky (see mayNeverBeFlaky); more than maxFlaky of them are red.
//
// "steps" stops at the first target that fails, and prints the seconds of each. With -page it goes on, and writes a row for each target into the page.
//
// It imports no service: setup.sh compiles it before the program, so that the first image is built while the program is being compiled.
package main

import (
	"context"
	"errors"
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
		fmt.Fprintf(os.Stderr, "deploy: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

// run gives the exit code, or an error that says why there is no result.
func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return 0, errors.New("name what to do: test, steps, dist, gvisor, image, skewed or count")
	}
	flags := flag.NewFlagSet("deploy "+args[0], flag.ContinueOnError)
	parse := func() bool { return flags.Parse(args[1:]) == nil } // the flag set prints what is wrong
	switch args[0] {
	case "test":
		s := suite{out: os.Stdout}
		flags.BoolVar(&s.rerun, "rerun", false, "run a test that failed once more, alone")
		flags.BoolVar(&s.skips, "skips", false, "allow tests to be skipped")
		packages := flags.String("packages", "./...", "the packages, separated by white space")
		if !parse() {
			return 2, nil
		}
		s.packages, s.flags = strings.Fields(*packages), flags.Args()
		return s.run(ctx)
	case "steps":
		s := stepper{out: os.Stdout}
		flags.DurationVar(&s.limit, "limit", 0, "how long all targets may take together; 0: without limit")
		flags.DurationVar(&s.each, "each", 0, "how long one target may take; 0: without limit")
		flags.StringVar(&s.page, "page", "", "go on after a target that fails, and write a row for each into this page")
		if !parse() {
			return 2, nil
		}
		if err := checkFlakyList(filepath.Join("deploy", "flaky.txt"), time.Now()); err != nil {
			return 0, err
		}
		return s.run(ctx, flags.Args())
	case "dist":
		r := release{log: os.Stderr}
		only := flags.String("only", "", "targets such as linux/amd64,darwin/arm64; empty: all")
		flags.StringVar(&r.version, "version", "unknown", "version that the programs report")
		flags.StringVar(&r.out, "out", "dist", "directory of the archives")
		flags.StringVar(&r.bom, "cyclonedx", "cyclonedx-gomod", "the program cyclonedx-gomod")
		commitTime := flags.Int64("time", 0, "modification time of all files, in seconds since 1970, so that the same commit gives the same archives")
		if !parse() {
			return 2, nil
		}
		chosen, err := choose(*only)
		if err != nil {
			return 0, err
		}
		r.modified = time.Unix(*commitTime, 0).UTC()
		return 0, r.write(ctx, chosen)
	case "gvisor":
		s := setup{out: os.Stdout}
		flags.StringVar(&s.built, "runsc", "", "the built runsc")
		flags.StringVar(&s.dir, "install", "/usr/local/bin", "the directory that it is installed in")
		flags.StringVar(&s.name, "name", "runsc", "name of the runtime")
		flags.StringVar(&s.config, "config", "/etc/docker/daemon.json", "the engine's configuration file")
		flags.StringVar(&s.pidFile, "pidfile", "/var/run/docker.pid", "the engine's file with its process id")
		if !parse() {
			return 2, nil
		}
		return 0, s.run(ctx, os.Getenv("DOCKER_HOST"))
	case "image":
		if len(args) != 2 {
			return 0, errors.New("give the name of one image, such as python")
		}
		return 0, buildImage(ctx, args[1], os.Stdout)
	case "skewed":
		out := flags.String("o", "", "the program to write")
		if !parse() {
			return 2, nil
		}
		return 0, buildSkewed(ctx, *out, flags.Arg(0))
	case "count":
		return 0, count(ctx, os.Stdout)
	default:
		return 0, fmt.Errorf("%q is none of test, steps, dist, gvisor, image, skewed and count", args[0])
	}
}
