package service

import (
	"strconv"
	"testing"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// A list of a million bad rules once made a million problems, of which twenty were reported.
func TestNoMoreProblemsAreKeptThanReported(t *testing.T) {
	t.Parallel()
	for n, kept := range map[int]int{strict.MaxProblems - 1: strict.MaxProblems - 1, strict.MaxProblems: strict.MaxProblems, strict.MaxProblems + 1: strict.MaxProblems} {
		p := Call{}.problems()
		for i := range n {
			p.check("/allow_hosts/"+strconv.Itoa(i), farm.Errorf(farm.CodeTooLarge, "too large"))
		}
		if len(p.found) != kept || farm.CodeOf(p.err()) != farm.CodeTooLarge {
			t.Errorf("%d problems: %d are kept, %v", n, len(p.found), p.err())
		}
		p.addf("/name", "bad") // counts even where it is not kept
		if farm.CodeOf(p.err()) != farm.CodeInvalid || !p.of("/name") {
			t.Errorf("one of %d problems is not about size: %v", n, p.err())
		}
	}
}
