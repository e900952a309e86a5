// Command bench compares a farm with the components that it consists of, both in the same run, and prints a table. It starts its own
// farm (bin/sandfarm) in a temporary directory and removes it afterwards.
//
//	make bench                         everything, as a Markdown table
//	go run ./bench -only print,stdout  some of it
//
// Installs need the Python index, and python3 with pip to compare with.
//
// Its results are recorded in docs/benchmarks.md with the date and the machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// row is one line of the table: what was measured, our result, the result that it is compared with, and the aim.
type row struct {
	what, ours, other, ratio, aim string
}

// benchmark is one measurement.
type benchmark struct {
	name string
	run  func(context.Context, *bench) []row
}

func benchmarks() []benchmark {
	return []benchmark{
		{"print", benchPrint},
		{"cpu", benchCPU},
		{"throughput", benchThroughput},
		{"create", benchCreate},
		{"pool", benchPool},
		{"upload", benchUpload},
		{"stdout", benchStdout},
		{"memory", benchMemory},
		{"history", benchHistory},
		{"install", benchInstall},
		{"crowd", benchCrowd},
		{"mcp", benchMCP},
		{"sessions", benchSessions},
		{"null", benchNull},
		{"commands", benchCommands},
		{"takeover", benchTakeover},
		{"workers", benchWorkers},
		{"neighbour", benchNeighbour},
		{"compat", benchCompat},
		{"e2b", benchE2B},
		{"gvisor", benchGVisor},
		{"ports", benchPorts},
		{"terminals", benchTerminals},
	}
}

func main() {
	only := flag.String("only", "", "names of measurements, comma-separated; empty: all")
	program := flag.String("program", "bin/sandfarm", "the built program")
	guest := flag.String("guest", "", "address on which to be the server of the measurement ports, in its sandbox, and nothing else")
	flag.Parse()
	if *guest != "" {
		l, err := net.Listen("tcp", *guest) //nolint:noctx // until the sandbox ends
		if err == nil {
			err = serveGuest(l)
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *program, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, program, only string) (err error) {
	name := "start"
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("%s: %w", name, failed.error)
		default:
			panic(failed)
		}
	}()
	b := start(ctx, program)
	defer b.close()
	fmt.Printf("%s · %d cores · %s\n\n", time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), b.machine)
	fmt.Println("| what | Sandfarm | compared with | ratio | aim |\n|---|---|---|---|---|")
	for _, m := range benchmarks() {
		if only != "" && !slices.Contains(strings.Split(only, ","), m.name) {
			continue
		}
		name = m.name
		for _, r := range m.run(ctx, b) {
			fmt.Printf("| %s | %s | %s | %s | %s |\n", r.what, r.ours, r.other, r.ratio, r.aim)
		}
	}
	return nil
}

// failure is what check panics with. It ends the run, after everything that is deferred; goroutines return their errors instead.
type failure struct{ error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func fail(format string, args ...any) { check(fmt.Errorf(format, args...)) }

// must and must2 return the values of a call that must succeed.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func must2[T, U any](first T, second U, err error) (T, U) {
	check(err)
	return first, second
}

// quantile returns the q-quantile of durations.
func quantile(d []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }

// spread is the median, and the 95th percentile in brackets.
func spread(d []time.Duration) string {
	return fmt.Sprintf("%s (%s)", ms(quantile(d, 0.5)), ms(quantile(d, 0.95)))
}

func times(a, b time.Duration) string { return fmt.Sprintf("%.2f×", float64(a)/float64(b)) }
