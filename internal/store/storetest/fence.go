package storetest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// everyWriteIsFenced makes each write of a worker under an attempt that another worker has taken over, and after the job has ended: the write
// is refused, and no key changes.
func everyWriteIsFenced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ctx, ref := t.Context(), b.accept(t, Execute(box.ID)).Job.Ref()
	b.claim(t, ref, "w")
	last := b.claim(t, ref, "w").Job // the job is claimed again: attempt 1 is over
	large := strings.Repeat("x", store.InlineBytes)
	writes := map[string]func(attempt int) error{
		"Finish": func(attempt int) error {
			_, err := b.Finish(ctx, store.Finish{Ref: ref, Attempt: attempt, State: farm.JobCompleted, Events: []farm.Event{stdout("9-1", "late")}})
			return err
		},
		"Requeue": func(attempt int) error { return b.Requeue(t.Context(), ref, store.Requeue{Attempt: attempt}) },
		"Requeue, begun": func(attempt int) error {
			return b.Requeue(t.Context(), ref, store.Requeue{Attempt: attempt, Begun: true})
		},
		"LeaveFIFO":     func(attempt int) error { return b.LeaveFIFO(ctx, ref, attempt) },
		"Checkpoint":    func(attempt int) error { return b.Checkpoint(ctx, ref, attempt, []byte("late")) },
		"ReserveStored": func(attempt int) error { _, _, err := b.ReserveStored(ctx, ref, attempt, 1); return err },
		"MoveSandbox": func(attempt int) error {
			_, err := b.MoveSandbox(ctx, store.Move{Ref: box, To: farm.SandboxClosing, Job: ref.ID, Attempt: attempt})
			return err
		},
		"AppendEvents": func(attempt int) error {
			return b.AppendEvents(ctx, ref, attempt, []farm.Event{{ID: "9-1", Name: farm.EventStdout, Text: "late"}})
		},
		"AppendEvents, long": func(attempt int) error {
			return b.AppendEvents(ctx, ref, attempt, []farm.Event{{ID: "9-1", Name: farm.EventStdout, Text: large}})
		},
		"AddArtifacts": func(attempt int) error {
			return b.AddArtifacts(ctx, attempt, []farm.Artifact{b.file(ref, "late", 1)})
		},
		"AddArtifacts, many": func(attempt int) error {
			var many []farm.Artifact
			for i := range 100 {
				many = append(many, b.file(ref, strings.Repeat("x", 500)+string(rune('0'+i)), 1))
			}
			return b.AddArtifacts(ctx, attempt, many)
		},
	}
	check := func(when string, attempt int, ended bool) {
		t.Helper()
		before, documents := b.dump(t), b.documents.Keys()
		for name, write := range writes {
			// Events behind the end of a job are dropped without an error.
			if err := write(attempt); !errors.Is(err, store.ErrFenced) && (!ended || err != nil || !strings.HasPrefix(name, "AppendEvents")) {
				t.Errorf("%s, %s under attempt %d = %v, want ErrFenced", when, name, attempt, err)
			}
			if diff := cmp.Diff(before, b.dump(t)); diff != "" {
				t.Errorf("%s, %s under attempt %d changed:\n%s", when, name, attempt, diff)
			}
			if diff := cmp.Diff(documents, b.documents.Keys()); diff != "" {
				t.Errorf("%s, %s under attempt %d left documents:\n%s", when, name, attempt, diff)
			}
		}
	}
	check("taken over", last.Attempt-1, false)
	check("of the future", last.Attempt+1, false)
	b.finish(t, last, farm.JobCompleted)
	check("ended", last.Attempt-1, true)
	delete(writes, "Finish") // under the last attempt it is a retry after a lost answer
	check("ended", last.Attempt, true)
}

// dump reads all keys of a test.
func (b *bundle) dump(t *testing.T) map[string]any {
	t.Helper()
	ctx, out := t.Context(), map[string]any{}
	keys, err := b.rdb.Keys(ctx, b.prefix+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		var value any
		switch kind := b.rdb.Type(ctx, key).Val(); kind {
		case "string":
			value, err = b.rdb.Get(ctx, key).Result()
		case "hash":
			value, err = b.rdb.HGetAll(ctx, key).Result()
		case "list":
			value, err = b.rdb.LRange(ctx, key, 0, -1).Result()
		case "set":
			value, err = b.rdb.SMembersMap(ctx, key).Result()
		case "zset":
			value, err = b.rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
		case "stream":
			value, err = b.rdb.XRange(ctx, key, "-", "+").Result()
		default:
			t.Fatalf("key %s is a %q", key, kind)
		}
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(key, b.prefix)] = value
	}
	return out
}
