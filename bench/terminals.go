package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

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
