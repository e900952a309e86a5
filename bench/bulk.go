package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"                 //nolint:depguard // what is compared with
	"github.com/minio/minio-go/v7/pkg/credentials" //nolint:depguard // what is compared with

	"github.com/sandfarm/sandfarm/internal/embedded"
)

const mib = 1 << 20

// benchUpload compares the upload of a 100 MiB artifact, out of the sandbox, with a put of the same bytes from memory into
// the same object store.
func benchUpload(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	access, secret := must2(embedded.LoadOrCreateCredentials(b.data + "/s3-credentials"))
	alone := must(minio.New(b.s3, &minio.Options{Creds: credentials.NewStaticV4(access, secret, ""), Region: "us-east-1"}))
	var ours, direct []time.Duration
	for n := range 5 {
		job, _ := must2(b.execute(ctx, id, fmt.Sprintf("import os\nopen('big%d.bin', 'wb').write(os.urandom(100 << 20))\nNone", n)))
		ours = append(ours, time.Duration(job.Timings.UploadMS*float64(time.Millisecond)))
		data := bytes.Repeat([]byte("0123456789abcdef"), 100*mib/16)
		began := time.Now()
		must(alone.PutObject(ctx, "sandfarm", fmt.Sprintf("bench/direct%d", n), bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{}))
		direct = append(direct, time.Since(began))
		check(b.Files(id).Delete(ctx, fmt.Sprintf("big%d.bin", n)))
	}
	o, d := quantile(ours, 0.5), quantile(direct, 0.5)
	return []row{{
		what: "artifact of 100 MiB, sandbox to store, p50", ours: fmt.Sprintf("%.0f MiB/s", 100/o.Seconds()), other: fmt.Sprintf("minio-go alone, from memory %.0f MiB/s", 100/d.Seconds()),
		ratio: fmt.Sprintf("%.2f", d.Seconds()/o.Seconds()), aim: "≥ 0.8",
	}}
}

// outputs are ways to print 100 MB.
var outputs = []struct{ what, code string }{
	{"in one print", "print('x' * 99_999_999)"},
	{"in 200 000 lines", "for n in range(200_000):\n    print('%0499d' % n)"},
	{"in a million lines", "for n in range(1_000_000):\n    print('%099d' % n)"},
}

// benchStdout prints 100 MB in several ways, checks that all of it arrives, measures the memory that it needs, and runs the same
// code in the kernel directly.
func benchStdout(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	must2(b.execute(ctx, id, "print('x' * 4_000_000)")) // warm up the handling of large output
	before := resident(b.cmd.Process.Pid, "VmRSS")
	var rows []row
	for _, o := range outputs {
		job, took := must2(b.execute(ctx, id, o.code))
		whole := int64(0)
		for _, a := range job.Result.Execute.Artifacts {
			whole = max(whole, a.Size)
		}
		if whole != 100_000_000 {
			fail("the whole output has %d bytes, want 100000000", whole)
		}
		text := must(b.floor(ctx, id, "code", strconv.Quote(o.code)))
		var seconds float64
		var bytes int64
		must(fmt.Sscan(text, &seconds, &bytes))
		direct := fmt.Sprintf("kernel called directly %.1f s", seconds)
		if bytes != 100_000_000 {
			direct += fmt.Sprintf(", of which %d MB arrived", bytes/1_000_000)
		}
		rows = append(rows, row{
			what: "100 MB to stdout " + o.what + ", stored completely", ours: fmt.Sprintf("%.1f s", took.Seconds()), other: direct,
			ratio: fmt.Sprintf("%.2f×", took.Seconds()/seconds), aim: "3 s",
		})
	}
	after := resident(b.cmd.Process.Pid, "VmHWM")
	return append(rows, row{
		what: "memory of API, worker and S3 in one process during it", ours: fmt.Sprintf("%d MiB at most", after>>20), other: fmt.Sprintf("%d MiB before", before>>20), aim: "flat",
	})
}

// resident returns a memory figure of a process in bytes.
func resident(pid int, field string) int64 {
	text := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return must(strconv.ParseInt(strings.Fields(rest)[0], 10, 64)) << 10
		}
	}
	fail("no %s", field)
	return 0
}

// benchMemory measures the memory of an idle sandbox and of the agent in it.
func benchMemory(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	time.Sleep(2 * time.Second) // let the sandbox become idle
	out := must(exec.CommandContext(ctx, "docker", "ps", "-q", "--filter", "label=sandfarm.sandbox="+id).Output())
	container := strings.TrimSpace(string(out))
	pid := must(exec.CommandContext(ctx, "docker", "inspect", "-f", "{{.State.Pid}}", container).Output())
	agent := must(strconv.Atoi(strings.TrimSpace(string(pid))))
	rss := resident(agent, "VmRSS")
	stats := must(exec.CommandContext(ctx, "docker", "stats", "--no-stream", "--format", "{{.MemUsage}}", container).Output())
	used, _, _ := strings.Cut(string(stats), " /")
	return []row{
		{what: "memory of an idle Python sandbox", ours: used, aim: "≤ 80 MiB"},
		{what: "resident memory of the agent in it", ours: fmt.Sprintf("%.1f MiB", float64(rss)/mib), aim: "≤ 15 MiB"},
	}
}

// How many finished jobs and idle sandboxes a filled farm has in its records.
const (
	histories = 100_000
	idleBoxes = 500
)

// benchHistory compares print(1) in an empty farm and in one with many records, in alternating blocks.
func benchHistory(ctx context.Context, b *bench) []row {
	full := start(ctx, b.program)
	defer full.close()
	full.fill(ctx, histories, idleBoxes)
	farms := []*bench{b, full}
	ids, all := make([]string, 2), make([][]time.Duration, 2)
	for i, f := range farms {
		ids[i] = must(f.sandbox(ctx))
		defer func() { _, _ = f.Close(ctx, ids[i]) }()
	}
	for round := range 7 { // the first round warms up both
		for i, f := range farms {
			for range 60 {
				_, took := must2(f.execute(ctx, ids[i], "print(1)"))
				if round > 0 {
					all[i] = append(all[i], took)
				}
			}
		}
	}
	empty, filled := quantile(all[0], 0.5), quantile(all[1], 0.5)
	return []row{{
		what: "`print(1)` with records of 100 000 finished jobs and 500 idle sandboxes in Redis, p50", ours: ms(filled), other: "a farm without them " + ms(empty),
		ratio: times(filled, empty), aim: "≤ 1.1×",
	}}
}
