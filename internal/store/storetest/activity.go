package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func activityIsOfTheLastHour(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	now := farm.MinuteOf(time.Now())
	for worker, minutes := range map[string][]farm.Minute{
		"wrk_1": {{At: now - 1, Ended: 2, Failed: 1, WaitMS: 10, RunMS: 20, MaxWaitMS: 9, Queues: map[string]int{"cpu": 2}}, {At: now - 10, Ended: 1}},
		"wrk_2": {{At: now - 61, Ended: 7}, {At: now - 1, Ended: 3, WaitMS: 5, RunMS: 6, MaxWaitMS: 4, Queues: map[string]int{"cpu": 1, "gpu": 2}}},
		"wrk_3": {{At: now - 100, Ended: 9}},
	} {
		for range 2 { // the second replaces the first
			if err := s.NoteActivity(ctx, worker, minutes); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []farm.Minute{{At: now - 10, Ended: 1}, {At: now - 1, Ended: 5, Failed: 1, WaitMS: 15, RunMS: 26, MaxWaitMS: 9, Queues: map[string]int{"cpu": 3, "gpu": 2}}}
	for range 2 { // the second time without what was removed
		got, err := s.Activity(ctx)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	}
}
