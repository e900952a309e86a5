package budget

import (
	"fmt"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// goShare is the part of a cgroup's limit that the Go runtime may use before it collects more often. The rest is for stacks of C
	// code, the page cache that cannot be dropped, and the time that a collection takes.
	goShare = 0.8
	// largest is the largest budget that Size chooses by itself.
	largest = 2 << 30
)

// Limits are the limits on the memory of this process and of its machine, in bytes; 0 means unknown or none.
type Limits struct {
	Process int64 // the smaller of Group and GOMEMLIMIT
	Group   int64 // of the process's cgroup
	Machine int64
}

// ReadLimits reads the limits of this process, and sets the memory limit of the Go runtime to four fifths of the cgroup's limit, unless
// GOMEMLIMIT is set.
func ReadLimits() (Limits, error) {
	var l Limits
	if total, err := memlimit.FromSystem(); err == nil && total < math.MaxInt64 {
		l.Machine = int64(total) //nolint:gosec // below MaxInt64
	}
	group, err := memlimit.FromCgroup()
	if err == nil && group < math.MaxInt64 && (l.Machine == 0 || int64(group) < l.Machine) { //nolint:gosec // below MaxInt64
		l.Process, l.Group = int64(group), int64(group) //nolint:gosec // below MaxInt64
		if _, err := memlimit.Set(memlimit.WithRatio(goShare), memlimit.WithProvider(memlimit.Limit(group))); err != nil {
			return l, fmt.Errorf("set the memory limit of the Go runtime: %w", err)
		}
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 && (l.Process == 0 || limit < l.Process) {
		l.Process = limit
	}
	return l, nil
}

// Size is the size of a budget for a process with these limits: a quarter of its own, or an eighth of the machine's memory where it has
// none, between 16 MiB and 2 GiB. Three quarters are left for the rest of the process and for what the collector has not freed yet.
func (l Limits) Size() int64 {
	size := l.Machine / 8
	if l.Process > 0 {
		size = l.Process / 4
	}
	return min(max(size, smallest), largest)
}
