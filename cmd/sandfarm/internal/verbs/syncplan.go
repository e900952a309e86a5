package verbs

import (
	"cmp"
	"slices"
)

// version identifies the content of a file on one side; empty: there is none.
type version string

// pair is what both sides had when they were last the same.
type pair struct {
	Here  version `json:"here"`
	There version `json:"there"`
}

// step is what a sync does with one file.
type step int

const (
	leave     step = iota
	push           // here to there
	pull           // there to here
	dropHere       // delete here
	dropThere      // delete there
	compare        // both sides are new or have changed: equal content is no conflict
	keepHere       // deleted there, without deletes
	keepThere      // deleted here, without deletes
)

// plan says what to do with a file, from what each side has now and from what both had; known is false if they never were the same. Without
// deletes a file that was deleted on one side stays on the other. A change wins over a deletion.
func plan(here, there version, was pair, known, deletes bool) step {
	changedHere, changedThere := here != was.Here, there != was.There
	switch {
	case here == "" && there == "":
		return leave
	case !known && here != "" && there != "":
		return compare
	case !known && here != "":
		return push
	case !known:
		return pull
	case !changedHere && !changedThere:
		return leave
	case changedHere && changedThere && here != "" && there != "":
		return compare
	case here == "" && changedThere: // deleted here, changed there
		return pull
	case there == "" && changedHere:
		return push
	case here == "" && deletes:
		return dropThere
	case there == "" && deletes:
		return dropHere
	case here == "":
		return keepThere
	case there == "":
		return keepHere
	case changedHere:
		return push
	}
	return pull
}

// work is a file with what to do with it.
type work struct {
	name string
	do   step
}

// plans compares all files of both sides.
func plans(here, there map[string]version, was map[string]pair, deletes bool) []work {
	var out []work
	see := func(name string) {
		p, known := was[name]
		if do := plan(here[name], there[name], p, known, deletes); do != leave {
			out = append(out, work{name, do})
		}
	}
	for name := range here {
		see(name)
	}
	for name := range there {
		if _, both := here[name]; !both {
			see(name)
		}
	}
	slices.SortFunc(out, func(a, b work) int { return cmp.Compare(a.name, b.name) })
	return out
}
