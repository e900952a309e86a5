package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const (
	portCallers = 16               // connections that send requests at once
	portBlock   = 2 * time.Second  // of requests before the other way has its turn
	portBytes   = int64(256 << 20) // of one answer
	portRounds  = 3
	guestPort   = 8123
)

// serveGuest is the server that both ways lead to: this program, in the sandbox and here.
func serveGuest(l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/small", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 1000)) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 256<<10)
		for range portBytes / int64(len(chunk)) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	return (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).Serve(l)
}

// benchPorts compares HTTP through a port of a sandbox with the same server behind a plain reverse proxy. Blocks of both alternate.
func benchPorts(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	b.guest(ctx, id)
	ours := b.URL() + "/v1/sandboxes/" + id + "/ports/" + fmt.Sprint(guestPort)
	plain, stop := plainProxy()
	defer stop()
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: portCallers, DisableCompression: true}}
	defer web.CloseIdleConnections()
	until(ctx, "the server in the sandbox answers", func() bool { _, err := fetch(ctx, web, ours+"/small"); return err == nil })
	var rates, speeds [2][]float64
	for range portRounds {
		for i, base := range []string{ours, plain} {
			rates[i] = append(rates[i], requests(ctx, web, base+"/small"))
			began := time.Now()
			n := must(fetch(ctx, web, base+"/large"))
			if n != portBytes {
				fail("%d bytes of %s", n, base)
			}
			speeds[i] = append(speeds[i], float64(n)/1e6/time.Since(began).Seconds())
		}
	}
	return []row{
		compared(fmt.Sprintf("requests through a port, 1 kB each, %d connections", portCallers), "/s", rates, "≥ 0.5"),
		compared("one answer of 256 MiB through a port", " MB/s", speeds, "300 MB/s"),
	}
}

// compared is the row of two series, by their medians.
func compared(what, unit string, series [2][]float64, aim string) row {
	median := func(s []float64) float64 { return slices.Sorted(slices.Values(s))[len(s)/2] }
	ours, other := median(series[0]), median(series[1])
	return row{
		what: fmt.Sprintf("%s, median of %d runs", what, portRounds), ours: fmt.Sprintf("%.0f%s", ours, unit),
		other: fmt.Sprintf("plain reverse proxy %.0f%s", other, unit), ratio: fmt.Sprintf("%.2f", ours/other), aim: aim,
	}
}

// guest starts this program as a server in a sandbox.
func (b *bench) guest(ctx context.Context, id string) {
	f := must(os.Open(must(os.Executable())))
	defer func() { _ = f.Close() }()
	check(b.Files(id).Write(ctx, "guest", f))
	command := fmt.Sprintf("chmod +x guest && exec ./guest -guest 127.0.0.1:%d", guestPort)
	must(b.StartProcess(ctx, id, wire.ProcessRequest{Command: &command}))
}

// plainProxy serves the same here, behind the standard library's reverse proxy.
func plainProxy() (base string, stop func()) {
	var listeners [2]net.Listener
	for i := range listeners {
		listeners[i] = must(net.Listen("tcp", "127.0.0.1:0")) //nolint:noctx // a measurement, bounded by the run
	}
	to := &url.URL{Scheme: "http", Host: listeners[0].Addr().String()}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: portCallers, DisableCompression: true}
	go func() { _ = serveGuest(listeners[0]) }()
	go func() { _ = (&http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}).Serve(listeners[1]) }()
	return "http://" + listeners[1].Addr().String(), func() { _, _ = listeners[0].Close(), listeners[1].Close() }
}

// requests sends requests over some connections for a while, and returns how many were answered in a second.
func requests(ctx context.Context, web *http.Client, at string) float64 {
	began := time.Now()
	counts := make([]int, portCallers)
	var g errgroup.Group
	for i := range counts {
		g.Go(func() error {
			for time.Since(began) < portBlock {
				if _, err := fetch(ctx, web, at); err != nil {
					return err
				}
				counts[i]++
			}
			return nil
		})
	}
	check(g.Wait())
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(began).Seconds()
}

// fetch reads an answer and returns its length.
func fetch(ctx context.Context, web *http.Client, at string) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := web.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return n, err
}

const (
	terminalBytes   = 100_000_000
	terminalKeys    = 500
	terminalShells  = 50 // each with several readers
	terminalReaders = 10
)

// benchTerminals measures a terminal: the echo of a key, much output, and what many open ones cost an API.
func benchTerminals(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	echo := b.echo(ctx, id)
	output := b.screenful(ctx, id)
	return append([]row{echo, output}, b.openTerminals(ctx, id)...)
}

// terminal starts a command on a terminal.
func (b *bench) terminal(ctx context.Context, id, command string) (wire.Process, error) {
	return b.StartProcess(ctx, id, wire.ProcessRequest{Command: &command, PTY: &wire.TerminalSize{Cols: 80, Rows: 24}})
}

// echo measures how long the echo of a key takes.
func (b *bench) echo(ctx context.Context, id string) row {
	p := must(b.terminal(ctx, id, "exec cat"))
	a := b.Attach(id, p.ID)
	var took []time.Duration
	check(a.Write(ctx, []byte("x")))
	typed := time.Now()
	for out, err := range a.Output(ctx) {
		check(err)
		if out.Kind != wire.AttachStdout {
			continue
		}
		if took = append(took, time.Since(typed)); len(took) > terminalKeys {
			break
		}
		typed = time.Now()
		check(a.Write(ctx, []byte("x")))
	}
	took = took[1:] // with the connection
	must(b.EndProcess(ctx, id, p.ID))
	return row{what: fmt.Sprintf("echo of a key in a terminal, %d keys, p50 (p95)", terminalKeys), ours: spread(took), aim: "p95 < 15 ms"}
}

// screenful compares 100 MB through a terminal with the same through the engine's.
func (b *bench) screenful(ctx context.Context, id string) row {
	show := fmt.Sprintf("yes 'a line of some sixty characters, as a build or a test prints it' | head -c %d", terminalBytes)
	container := must(exec.CommandContext(ctx, "docker", "ps", "-q", "--filter", "label=sandfarm.sandbox="+id).Output())
	var ours, theirs []time.Duration
	for range 3 {
		began := time.Now()
		p := must(b.terminal(ctx, id, show))
		n := 0
		for out, err := range b.Attach(id, p.ID).Output(ctx) {
			check(err)
			if out.Kind == wire.AttachDropped {
				fail("output of a terminal was lost")
			}
			n += len(out.Data)
		}
		if n < terminalBytes {
			fail("%d bytes came", n)
		}
		ours = append(ours, time.Since(began))
		began = time.Now()
		check(exec.CommandContext(ctx, "docker", "exec", "-t", strings.TrimSpace(string(container)), "sh", "-c", show).Run())
		theirs = append(theirs, time.Since(began))
	}
	speed := func(d time.Duration) string { return fmt.Sprintf("%.0f MB/s", terminalBytes/1e6/d.Seconds()) }
	own, other := quantile(ours, 0.5), quantile(theirs, 0.5)
	return row{what: "100 MB through a terminal, median of 3 runs", ours: speed(own), other: "docker exec -t " + speed(other), ratio: fmt.Sprintf("%.2f", float64(other)/float64(own)), aim: "50 MB/s"}
}

// openTerminals measures the memory of a separate API with many open terminals, and what they cost Redis while they are idle.
func (b *bench) openTerminals(ctx context.Context, id string) []row {
	listen := freeAddress()
	api := b.service("api", "SANDFARM_API_LISTEN="+listen, "GOMEMLIMIT=200MiB")
	defer api.close()
	beside := must(client.New("http://" + listen))
	until(ctx, "start an API", func() bool { return beside.Ready(ctx) == nil })
	none := settled(ctx, api.cmd.Process.Pid)
	quiet := b.commandsIn(ctx, 10*time.Second)
	reading, leave := context.WithCancel(ctx)
	defer leave()
	greeted := make(chan error, terminalShells*terminalReaders)
	for range terminalShells {
		p := must(b.terminal(ctx, id, "echo ready; exec cat"))
		for range terminalReaders {
			go func() {
				first := true
				for _, err := range beside.Attach(id, p.ID).Output(reading) {
					if first || err != nil {
						first = false
						greeted <- err
					}
				}
			}()
		}
	}
	for range terminalShells * terminalReaders {
		check(<-greeted)
	}
	open := settled(ctx, api.cmd.Process.Pid)
	held := b.commandsIn(ctx, 10*time.Second)
	leave()
	closed := settled(ctx, api.cmd.Process.Pid)
	count := terminalShells * terminalReaders
	return []row{
		{what: fmt.Sprintf("memory of an API process with %d readers of terminals, %d at each of %d", count, terminalReaders, terminalShells), ours: fmt.Sprintf("%d MiB", open>>20), other: fmt.Sprintf("with none %d MiB", none>>20), ratio: fmt.Sprintf("%d KiB each", (open-none)>>10/int64(count)), aim: "≤ 256 MiB"},
		{what: "and when they are closed", ours: fmt.Sprintf("%d MiB", closed>>20), other: fmt.Sprintf("with none %d MiB", none>>20), aim: "no more than open"},
		{what: "Redis commands in a second while they are idle", ours: fmt.Sprintf("%.1f", held), other: fmt.Sprintf("without them %.1f", quiet), aim: "the same"},
	}
}

// commandsIn is how many commands the farm sends to Redis in a second.
func (b *bench) commandsIn(ctx context.Context, d time.Duration) float64 {
	before := b.commands(ctx)
	time.Sleep(d)
	return (b.commands(ctx) - before) / d.Seconds()
}
