package files

import (
	"math"
	"testing"

	"golang.org/x/sys/unix"
)

// Code may set any time. One beyond the year 9999 cannot be written as JSON: the listing failed, and so did the job that made the file.
func TestTimesThatJSONCannotWriteAreBounded(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]int64{
		math.MinInt64: firstSecond, firstSecond: firstSecond, -1: -1, 0: 0, 1_700_000_000: 1_700_000_000, lastSecond: lastSecond, lastSecond + 1: lastSecond, math.MaxInt64: lastSecond,
	} {
		got := (&info{st: unix.Stat_t{Mtim: unix.Timespec{Sec: seconds}}}).modTime().UTC()
		if _, err := got.MarshalJSON(); err != nil || got.Unix() != want {
			t.Errorf("%d is %s, %v", seconds, got, err)
		}
	}
}
