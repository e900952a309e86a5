package verbs

import "testing"

func TestPlan(t *testing.T) {
	t.Parallel()
	was := pair{"h1", "t1"}
	for name, c := range map[string]struct {
		here, there version
		known       bool
		want, del   step // without and with deletes
	}{
		"new here":                    {"h1", "", false, push, push},
		"new there":                   {"", "t1", false, pull, pull},
		"new on both sides":           {"h1", "t1", false, compare, compare},
		"unchanged":                   {"h1", "t1", true, leave, leave},
		"changed here":                {"h2", "t1", true, push, push},
		"changed there":               {"h1", "t2", true, pull, pull},
		"changed on both sides":       {"h2", "t2", true, compare, compare},
		"deleted here":                {"", "t1", true, keepThere, dropThere},
		"deleted there":               {"h1", "", true, keepHere, dropHere},
		"deleted here, changed there": {"", "t2", true, pull, pull},
		"deleted there, changed here": {"h2", "", true, push, push},
		"deleted on both sides":       {"", "", true, leave, leave},
	} {
		for deletes, want := range map[bool]step{false: c.want, true: c.del} {
			if got := plan(c.here, c.there, was, c.known, deletes); got != want {
				t.Errorf("%s, deletes %v: %d, want %d", name, deletes, got, want)
			}
		}
	}
}
