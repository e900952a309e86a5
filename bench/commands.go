package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// benchCommands counts the Redis commands of each job, without those that an idle farm sends too.
func benchCommands(ctx context.Context, b *bench) ([]row, error) {
	const jobs = 300
	id, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = b.Close(ctx, id) }()
	count := func(work func() error) (calls, seconds float64, err error) {
		before, err := b.commands(ctx)
		if err != nil {
			return 0, 0, err
		}
		began := time.Now()
		if err := work(); err != nil {
			return 0, 0, err
		}
		seconds = time.Since(began).Seconds()
		after, err := b.commands(ctx)
		return after - before, seconds, err
	}
	if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
		return nil, err
	}
	idle, rest, err := count(func() error { time.Sleep(10 * time.Second); return nil })
	if err != nil {
		return nil, err
	}
	busy, took, err := count(func() error {
		for range jobs {
			if _, _, err := b.execute(ctx, id, "print(1)"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	each := (busy - idle/rest*took) / jobs
	return []row{{
		what: "Redis commands for each `print(1)` with `wait`", ours: fmt.Sprintf("%.1f", each), other: fmt.Sprintf("idle farm %.1f/s", idle/rest), aim: "bounded by a test",
	}}, nil
}

// commands returns how many commands the farm has sent to Redis so far, from its own metric.
func (b *bench) commands(ctx context.Context) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL()+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request) //nolint:forbidigo // a measurement, bounded by the run
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, "sandfarm_redis_commands_total{") {
			n, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}
