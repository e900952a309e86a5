package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const (
	crowd       = 20
	crowdWanted = "pandas==2.3.3" // the image has another version, and lacks some dependencies of this one
)

// benchCrowd installs pandas in 20 sandboxes at once in an empty farm and counts the requests to upstream. It compares that with 20
// uv processes on the host, each with an empty cache.
func benchCrowd(ctx context.Context, b *bench) []row {
	program := uvProgram(ctx, b.data)
	u := startUpstream(ctx, lines[0])
	defer u.close()
	took, whole := must2(b.crowdOnce(ctx, u))
	asked, limit, all := u.downloads()
	parts := u.parts

	direct := startUpstream(ctx, lines[0])
	defer direct.close()
	dir := must(os.MkdirTemp(b.data, "crowd-*"))
	defer func() { _ = os.RemoveAll(dir) }()
	alone, aloneWhole := must2(together(func(n int) (time.Duration, error) {
		began := time.Now()
		out, err := uvInstall(ctx, program, direct.url, filepath.Join(dir, fmt.Sprint("cache", n)), filepath.Join(dir, fmt.Sprint("target", n)), crowdWanted).CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("uv: %w: %s", err, out)
		}
		return time.Since(began), nil
	}))
	directAsked, _, directAll := direct.downloads()
	return []row{{
		what: "20 sandboxes install pandas at once, until the last has it", ours: fmt.Sprintf("%.1f s, each p50 %.1f s, p95 %.1f s", whole.Seconds(), quantile(took, 0.5).Seconds(), quantile(took, 0.95).Seconds()),
		other: fmt.Sprintf("20 uv with empty caches on the host %.1f s, p50 %.1f s, p95 %.1f s", aloneWhole.Seconds(), quantile(alone, 0.5).Seconds(), quantile(alone, 0.95).Seconds()), ratio: times(whole, aloneWhole),
	}, {
		what: "downloads from upstream meanwhile", ours: fmt.Sprintf("%d of %d files (at most %d of one), %d parts", all, asked, limit, parts),
		other: fmt.Sprintf("%d of %d files, %d parts", directAll, directAsked, direct.parts), aim: "1 of each",
	}}
}

func (b *bench) crowdOnce(ctx context.Context, u *upstream) ([]time.Duration, time.Duration, error) {
	f := start(ctx, b.program, "SANDFARM_PYPI_INDEX_URL="+u.url)
	defer f.close()
	ids := make([]string, crowd)
	for i := range ids {
		ids[i] = must(f.sandbox(ctx))
	}
	return together(func(n int) (time.Duration, error) { return f.install(ctx, ids[n], crowdWanted) })
}

// together calls a function for the whole crowd at once and returns the time of each call and of all together.
func together(do func(n int) (time.Duration, error)) ([]time.Duration, time.Duration, error) {
	took := make([]time.Duration, crowd)
	var g errgroup.Group
	began := time.Now()
	for n := range took {
		g.Go(func() error {
			var err error
			took[n], err = do(n)
			return err
		})
	}
	err := g.Wait()
	return took, time.Since(began), err
}

// benchNeighbour compares print(1) while code of another sandbox sleeps with the same on a quiet farm. Blocks of both
// alternate.
func benchNeighbour(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	other := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, other) }()
	var quiet, beside []time.Duration
	block := func(into *[]time.Duration) {
		for n := range 60 {
			_, took := must2(b.execute(ctx, id, "print(1)"))
			if n >= 10 { // warm
				*into = append(*into, took)
			}
		}
	}
	for range 4 {
		block(&quiet)
		sleeping := must(b.Execute(ctx, other, wire.ExecuteRequest{Code: "import time; time.sleep(10)"}))
		block(&beside)
		job := must(b.Job(ctx, sleeping.ID))
		if job.Final() {
			fail("the sleep ended before the block: %s", job.State)
		}
		must(b.Interrupt(ctx, other, client.WithWait(30*time.Second)))
		must(b.Wait(ctx, sleeping.ID))
	}
	return []row{{
		what: "`print(1)` while another client's code sleeps 10 s, p50 (p95)", ours: spread(beside),
		other: "quiet " + spread(quiet), ratio: times(quantile(beside, 0.5), quantile(quiet, 0.5)), aim: "≤ 1.2×",
	}}
}
