//go:build unix

package httpserver

import (
	"math"

	"golang.org/x/sys/unix"
)

// Files is how many files this process may open. Go raises the soft limit to the hard one when a program starts.
func Files() int64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(limit.Cur) //nolint:gosec // checked above
}
