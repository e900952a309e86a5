package kernel

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
)

func TestNamesOfValuesAreBounded(t *testing.T) {
	t.Parallel()
	for length, kept := range map[int]bool{agent.MaxDisplayID - 1: true, agent.MaxDisplayID: true, agent.MaxDisplayID + 1: false} {
		var v values
		id := strings.Repeat("n", length)
		first, name := v.number(id, false)
		second, _ := v.number(id, true)
		if first != 1 || (name == id) != kept || (name == "") == kept || (second == 1) != kept {
			t.Errorf("a name of %d bytes: number %d with name %q, then number %d", length, first, name, second)
		}
	}
}

// The newest names are remembered, so that an animation that makes a name for each picture can always update the last one.
func TestTheNewestNamesOfValuesAreRemembered(t *testing.T) {
	t.Parallel()
	for _, count := range []int{maxNamedValues - 1, maxNamedValues, maxNamedValues + 1, 3 * maxNamedValues} {
		var v values
		for i := range count {
			v.number(strconv.Itoa(i), false)
		}
		if n, _ := v.number(strconv.Itoa(count-1), true); n != count {
			t.Errorf("of %d values, the newest has number %d", count, n)
		}
		oldest := max(0, count-maxNamedValues)
		if n, _ := v.number(strconv.Itoa(oldest), true); n != oldest+1 {
			t.Errorf("of %d values, the oldest that is remembered has number %d, want %d", count, n, oldest+1)
		}
		if len(v.named) > maxNamedValues || len(v.names) > maxNamedValues {
			t.Errorf("of %d values, %d names are remembered", count, len(v.named))
		}
		if count > maxNamedValues {
			if n, _ := v.number("0", true); n != count+1 {
				t.Errorf("of %d values, the first still has number %d", count, n)
			}
		}
	}
}

// A name that is used again belongs to the newer value.
func TestANameBelongsToTheNewestValue(t *testing.T) {
	t.Parallel()
	var v values
	for range 2 * maxNamedValues {
		v.number("same", false)
	}
	if n, _ := v.number("same", true); n != 2*maxNamedValues || len(v.names) != 1 {
		t.Errorf("the update has number %d, and %d names are remembered", n, len(v.names))
	}
}
