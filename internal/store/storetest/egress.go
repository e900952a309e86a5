package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/sandboxes"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// egressKey is where the log of a sandbox is.
func (b *bundle) egressKey(box farm.Ref) string {
	return b.prefix + "{" + box.Tenant + "}:egress:" + box.ID
}

func (b *bundle) recordKey(box farm.Ref) string {
	return b.prefix + "{" + box.Tenant + "}:sbx:" + box.ID
}

func egressEntries(from, to int) []farm.EgressEntry {
	var out []farm.EgressEntry
	for i := from; i < to; i++ {
		out = append(out, farm.EgressEntry{At: time.Unix(int64(i), 0).UTC(), Host: fmt.Sprintf("h%d.example.com", i), Port: 443, Method: "CONNECT", Verdict: "allowed"})
	}
	return out
}

func egressLogIsRead(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box, ctx := b.box(t, farm.SandboxReady), t.Context()
	full := farm.EgressEntry{
		At: time.Unix(9, 0).UTC(), Host: "api.example.com", Port: 8443, Method: "GET", Verdict: "denied", Reason: "no rule", Sent: 1 << 40, Received: 2, DurationMS: 3, Missed: 4,
	}
	for i, want := range []int64{1 << 40, 1<<40 + 5, 1<<40 + 5} {
		a := store.EgressAppend{Sandbox: box, Generation: 1, Bytes: []int64{1 << 40, 5, 0}[i]}
		if i == 0 {
			a.Entries = []farm.EgressEntry{full}
		}
		got, err := b.AppendEgress(ctx, a)
		testbed.Check(t, got == want && err == nil, "bytes = %d, %v, want %d", got, err, want)
	}
	_, err := b.AppendEgress(ctx, store.EgressAppend{Sandbox: box, Entries: egressEntries(0, 6)})
	testbed.Must(t, err)
	want := append([]farm.EgressEntry{full}, egressEntries(0, 6)...)
	var got []farm.EgressEntry
	after, pages := "", 0
	for more := true; more && pages < 10; pages++ {
		var page []farm.EgressEntry
		var err error
		if page, more, err = b.Egress(ctx, box, after, 3); err != nil || len(page) == 0 {
			t.Fatalf("page %d: %v, %v", pages, page, err)
		}
		for _, e := range page {
			after, e.ID = e.ID, ""
			got = append(got, e)
		}
	}
	diff := cmp.Diff(want, got)
	testbed.Check(t, diff == "" && pages == 3, "%d pages (-want +got):\n%s", pages, diff)
	page, more, err := b.Egress(ctx, box, after, 3)
	testbed.Check(t, len(page) == 0 && !more && err == nil, "behind the last: %v, %v, %v", page, more, err)
	_, _, err = b.Egress(ctx, box, "x", 3)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "after x: %v", err)
	page, _, err = b.Egress(ctx, farm.Ref{Tenant: "other", ID: box.ID}, "", 3)
	testbed.Check(t, len(page) == 0 && err == nil, "another tenant reads %v, %v", page, err)
}

func egressLogIsBounded(t *testing.T, factory Factory) {
	const limit = 10
	b := setup(t, factory, func(l *farm.Limits) { l.MaxEgressEntries = limit })
	for _, n := range []int{limit - 1, limit, limit + 1, 25} {
		box := b.box(t, farm.SandboxReady)
		for i := range n {
			_, err := b.AppendEgress(t.Context(), store.EgressAppend{Sandbox: box, Entries: egressEntries(i, i+1)})
			testbed.Must(t, err)
		}
		kept, _, err := b.Egress(t.Context(), box, "", 100)
		if err != nil || len(kept) != min(n, limit) || kept[len(kept)-1].Host != fmt.Sprintf("h%d.example.com", n-1) {
			t.Errorf("of %d entries %d are kept, want the newest %d: %v", n, len(kept), min(n, limit), err)
		}
	}
}

// The newest entries are kept, of so many bytes, and only they count.
func egressLogIsBoundedInBytes(t *testing.T, factory Factory) {
	b := setup(t, factory)
	fill := func(entries []farm.EgressEntry, bytes int) { // evenly
		t.Helper()
		for i := range entries {
			entries[i].Secrets = []string{""}
			text, err := json.Marshal(entries[i])
			testbed.Must(t, err)
			part := bytes / (len(entries) - i)
			entries[i].Secrets[0], bytes = strings.Repeat("N", part-len(text)), bytes-part
		}
	}
	for _, c := range []struct{ entries, bytes, kept int }{
		{2, sandboxes.EgressBytes - 1, 2},
		{2, sandboxes.EgressBytes, 2},
		{2, sandboxes.EgressBytes + 1, 1},
		{300, 300 * 1024, 256},
		{3, 3 * (sandboxes.EgressBytes + 1), 0}, // none has room
	} {
		for _, at := range []int{1, c.entries} { // at once
			box := b.box(t, farm.SandboxReady)
			before := b.memory(t).Unfinished
			all := egressEntries(0, c.entries)
			fill(all, c.bytes)
			for some := range slices.Chunk(all, at) {
				_, err := b.AppendEgress(t.Context(), store.EgressAppend{Sandbox: box, Entries: some})
				testbed.Must(t, err)
			}
			kept, _, err := b.Egress(t.Context(), box, "", c.entries)
			testbed.Must(t, err)
			want := 0
			for i := range kept {
				kept[i].ID = ""
			}
			for _, e := range all[c.entries-c.kept:] {
				text, err := json.Marshal(e)
				testbed.Must(t, err)
				want += len(text) + 64
			}
			testbed.Require(t, len(kept) == c.kept, "of %d entries with %d bytes %d are kept, want %d", c.entries, c.bytes, len(kept), c.kept)
			testbed.Check(t, cmp.Equal(all[c.entries-c.kept:], kept, cmpopts.EquateEmpty()), "of %d entries not the newest are kept", c.entries)
			testbed.Diff(t, fmt.Sprintf("what %d of %d entries count", c.kept, c.entries), int64(want), b.memory(t).Unfinished-before)
		}
	}
}

// The log counts what its entries hold: code chooses hosts and methods, and its caller the names of secrets. What the log no longer keeps is
// given back.
func egressLogIsCounted(t *testing.T, factory Factory) {
	const limit, long = 10, 20_000
	b := setup(t, factory, func(l *farm.Limits) { l.MaxEgressEntries = limit })
	box := b.box(t, farm.SandboxReady)
	add := func(from, to, bytes int) int64 {
		t.Helper()
		entries := egressEntries(from, to)
		for i := range entries {
			entries[i].Secrets = []string{strings.Repeat("N", bytes)}
		}
		_, err := b.AppendEgress(t.Context(), store.EgressAppend{Sandbox: box, Entries: entries})
		testbed.Must(t, err)
		return b.memory(t).Unfinished
	}
	before := b.memory(t).Unfinished
	short := add(0, limit, 1)
	full := add(0, limit, long) // in place of them
	more := short - before
	testbed.Check(t, more >= limit*150 && more <= limit*500, "%d short entries count %d bytes", limit, more)
	testbed.Check(t, full-short == limit*(long-1), "%d entries with %d bytes more each count %d bytes more", limit, long-1, full-short)
	if now := add(0, limit/2, 1); full-now != limit/2*(long-1) {
		t.Errorf("half of the log with short entries counts %d bytes, full of long ones %d", now-before, full-before)
	}
	b.rdb.HDel(t.Context(), b.recordKey(box), "logged") // the release before did not write it
	now := add(0, limit, 1)
	testbed.Check(t, now == short, "of a log of the release before %d bytes are left, want %d", now-before, short-before)
}

// A page ends early where its entries are long, and the next one goes on from there.
func egressPagesAreBoundedInBytes(t *testing.T, factory Factory) {
	const entries, long = 300, 10_000
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	all := egressEntries(0, entries)
	for i := range all { // as an earlier release wrote it: now a log is shorter than a page
		all[i].Secrets = []string{strings.Repeat("N", long)}
		text, err := json.Marshal(all[i])
		testbed.Must(t, err)
		testbed.Must(t, b.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: b.egressKey(box), Values: []any{"e", text}}).Err())
	}
	after, read := "", 0
	for more := true; more; {
		var page []farm.EgressEntry
		var err error
		if page, more, err = b.Egress(t.Context(), box, after, 1000); err != nil || len(page) == 0 || len(page)*long > 2<<20 {
			t.Fatalf("behind %d entries: %d entries, more %v, %v", read, len(page), more, err)
		}
		for _, e := range page {
			testbed.Require(t, e.Host == all[read].Host, "entry %d is of %s, want %s", read, e.Host, all[read].Host)
			read++
		}
		after = page[len(page)-1].ID
	}
	testbed.Check(t, read == entries, "%d entries are read of %d", read, entries)
}

// The log goes with the record of its sandbox, also what comes late.
func egressLogEndsWithItsSandbox(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box, ctx := b.box(t, farm.SandboxReady), t.Context()
	add := func() error {
		_, err := b.AppendEgress(ctx, store.EgressAppend{Sandbox: box, Generation: 1, Entries: egressEntries(0, 1), Bytes: 1})
		return err
	}
	testbed.Must(t, add())
	ttl := b.rdb.TTL(ctx, b.egressKey(box)).Val()
	testbed.Check(t, ttl < 0, "the log of an open sandbox expires in %v", ttl)
	b.end(t, box.ID)
	for _, when := range []string{"at the end", "after a late entry", "after a late entry without a log"} {
		record, log := b.rdb.TTL(ctx, b.recordKey(box)).Val(), b.rdb.TTL(ctx, b.egressKey(box)).Val()
		testbed.Check(t, log > 0 && (record-log).Abs() <= time.Minute, "%s: the record expires in %v, the log in %v", when, record, log)
		if when == "after a late entry" {
			b.rdb.Del(ctx, b.egressKey(box))
		}
		testbed.Must(t, add())
	}
	b.rdb.Del(ctx, b.recordKey(box), b.egressKey(box))
	err := add()
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "without a record: %v", err)
	n := b.rdb.Exists(ctx, b.egressKey(box), b.recordKey(box)).Val()
	testbed.Check(t, n == 0, "%d keys were written without a record", n)
}

// Sealed secrets are replaced if they are still those that were read, and else nothing of the update is.
func secretsAreReplacedAsTheyWere(t *testing.T, factory Factory) {
	b, ctx := setup(t, factory), t.Context()
	a := Create()
	a.Secrets = []byte("first \x00\xff")
	box := b.accept(t, a).Sandbox.Ref()
	name := "renamed"
	for _, c := range []struct {
		was, now string
		want     error
		kept     string
	}{
		{"other", "second", store.ErrSecretsChanged, "first \x00\xff"},
		{"", "second", store.ErrSecretsChanged, "first \x00\xff"},
		{"first \x00\xff", "second \x00", nil, "second \x00"},
		{"first \x00\xff", "third", store.ErrSecretsChanged, "second \x00"},
	} {
		got, err := b.UpdateSandbox(ctx, box, store.SandboxPatch{Name: &name, Secrets: &store.SealedSecrets{Was: []byte(c.was), Now: []byte(c.now)}})
		testbed.Check(t, errors.Is(err, c.want) && (err != nil || got.Spec.Name == name), "%q: %+v, %v", c.was, got, err)
		kept, err := b.SandboxSecrets(ctx, box)
		testbed.Check(t, string(kept) == c.kept && err == nil, "%q: the secrets are %q, %v", c.was, kept, err)
		testbed.Check(t, c.want == nil || c.kept != string(a.Secrets) || b.sandbox(t, box).Spec.Name != name, "%q: the rest was changed", c.was)
	}
	_, err := b.MoveSandbox(ctx, store.Move{Ref: box, To: farm.SandboxFailed, Removed: true})
	testbed.Must(t, err)
	_, err = b.UpdateSandbox(ctx, box, store.SandboxPatch{Secrets: &store.SealedSecrets{Was: []byte("second \x00"), Now: []byte("late")}})
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "after the end: %v", err)
	kept, err := b.SandboxSecrets(ctx, box)
	testbed.Check(t, kept == nil && err == nil, "after the end the secrets are %q, %v", kept, err)
}

// Sealed secrets are stored with the sandbox and removed when it ends, while its record stays.
func secretsEndWithTheirSandbox(t *testing.T, factory Factory) {
	for _, end := range []farm.SandboxState{farm.SandboxFailed, farm.SandboxLost} {
		b, ctx := setup(t, factory), t.Context()
		a := Create()
		a.Secrets = []byte("sealed \x00\xff")
		box := b.accept(t, a).Sandbox.Ref()
		if got, err := b.SandboxSecrets(ctx, box); string(got) != string(a.Secrets) || err != nil {
			t.Errorf("secrets = %q, %v", got, err)
		}
		if got, err := b.SandboxSecrets(ctx, farm.Ref{Tenant: "other", ID: box.ID}); got != nil || err != nil {
			t.Errorf("secrets of another tenant = %q, %v", got, err)
		}
		_, err := b.MoveSandbox(ctx, store.Move{Ref: box, To: end, Removed: true})
		testbed.Must(t, err)
		got, err := b.SandboxSecrets(ctx, box)
		testbed.Check(t, got == nil && err == nil && b.sandbox(t, box).State == end, "secrets of a sandbox that has ended = %q, %v", got, err)
	}
}

func egressLogIsFenced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	before := b.dump(t)
	_, err := b.AppendEgress(t.Context(), store.EgressAppend{Sandbox: box, Generation: 2, Entries: egressEntries(0, 1), Bytes: 1})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "another generation: %v", err)
	testbed.Diff(t, "it wrote", before, b.dump(t))
}

// New hosts reach the record and the workers, and are kept through other changes.
func hostsArePatched(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box, ctx := b.box(t, farm.SandboxReady), t.Context()
	cancels, err := b.Cancels(ctx)
	testbed.Must(t, err)
	defer func() { _ = cancels.Close() }()
	for _, hosts := range [][]string{{"a.example.com", "GET *.example.org:8080"}, {}} {
		_, err = b.UpdateSandbox(ctx, box, store.SandboxPatch{AllowHosts: &hosts})
		testbed.Must(t, err)
		select {
		case ref := <-cancels.C():
			testbed.Check(t, ref == box, "message about %+v", ref)
		case <-time.After(20 * time.Second):
			t.Fatal("no worker got the message")
		}
		name := "x"
		changed, err := b.UpdateSandbox(ctx, box, store.SandboxPatch{Name: &name})
		testbed.Check(t, err == nil && len(changed.Spec.AllowHosts) == len(hosts), "hosts = %q, %v", changed.Spec.AllowHosts, err)
		got := b.sandbox(t, box).Spec.AllowHosts
		testbed.Check(t, len(got) == len(hosts) && (len(got) == 0 || got[1] == hosts[1]), "hosts = %q, want %q", got, hosts)
	}
}
