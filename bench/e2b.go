package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

//go:embed e2b.py
var e2bScript string

const (
	e2bCreates = poolSize * 3 / 4
	e2bPairs   = 200
)

// seconds are measured durations.
type seconds []float64

func (s seconds) durations() []time.Duration {
	out := make([]time.Duration, len(s))
	for i, one := range s {
		out[i] = time.Duration(one * float64(time.Second))
	}
	return out
}

// benchE2B compares print(1) by run_code of E2B's SDK for Python with the same by REST, by the same HTTP library. The farm has a pool.
func benchE2B(ctx context.Context, b *bench) ([]row, error) {
	dir := os.Getenv("SANDFARM_TEST_E2B")
	if dir == "" {
		return nil, errors.New("SANDFARM_TEST_E2B does not name the SDKs of E2B: run the benchmarks with make")
	}
	farm, err := start(ctx, b.program, fmt.Sprintf("SANDFARM_WORKER_POOL=python=%d", poolSize))
	if err != nil {
		return nil, err
	}
	defer farm.close()
	if err := farm.filled(ctx); err != nil {
		return nil, err
	}
	door := farm.URL() + "/e2b"
	run := exec.CommandContext(ctx, filepath.Join(dir, "venv", "bin", "python"), "-c", e2bScript, strconv.Itoa(e2bCreates), strconv.Itoa(e2bPairs)) //nolint:gosec // our own script
	run.Env, run.Stderr = append(os.Environ(), "E2B_API_URL="+door, "E2B_SANDBOX_URL="+door, "E2B_API_KEY=e2b_00"), os.Stderr
	text, err := run.Output()
	if err != nil {
		return nil, fmt.Errorf("measure E2B's SDK: %w", err)
	}
	var took struct{ Create, SDK, REST seconds }
	if err := json.Unmarshal(text, &took); err != nil {
		return nil, fmt.Errorf("read %q: %w", text, err)
	}
	create, sdk, rest := took.Create.durations(), took.SDK.durations(), took.REST.durations()
	return []row{{
		what: "`print(1)` by `run_code` of E2B's SDK, p50 (p95)", ours: fmt.Sprintf("%s (%s)", ms(quantile(sdk, 0.5)), ms(quantile(sdk, 0.95))),
		other: fmt.Sprintf("REST with `wait` %s (%s)", ms(quantile(rest, 0.5)), ms(quantile(rest, 0.95))), ratio: times(quantile(sdk, 0.5), quantile(rest, 0.5)), aim: "≤ 1.3×",
	}, {
		what: "`Sandbox.create` of E2B's SDK from the pool, p50 (p95)", ours: fmt.Sprintf("%s (%s)", ms(quantile(create, 0.5)), ms(quantile(create, 0.95))), aim: "< 30 ms",
	}}, nil
}
