package farmd

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestProgressShowsStepsWithTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out testbed.Log
		c := newConsole(&out)
		stop := c.watch()
		report := func(after time.Duration, message string, done, total float64) {
			time.Sleep(after)
			c.printProgress(farm.Progress{Message: message, Done: done, Total: total})
		}
		report(0, "Asking the registry for python", 0, 0)
		report(3*time.Second, "Step 1/2 : FROM base", 0, 2)
		report(0, "Step 2/2 : RUN pip install numpy", 1, 2)
		report(time.Second, "Collecting numpy", 1, 2) // too soon after the last line
		report(3*time.Second, "Downloading numpy", 1, 2)
		report(time.Second, "Downloading numpy", 1, 2)
		time.Sleep(34 * time.Second)
		report(27*time.Second, "Step 3/2 : "+strings.Repeat("x", 200), 2, 2)
		stop()
		time.Sleep(time.Minute)
		want := `  [ 0:00] Asking the registry for python
  [ 0:03] step 1 of 2: FROM base
  [ 0:03] step 2 of 2: RUN pip install numpy
  [ 0:07]   Downloading numpy
  [ 0:20] still working on step 2 of 2
  [ 0:30] still working on step 2 of 2
  [ 0:40] still working on step 2 of 2
  [ 0:50] still working on step 2 of 2
  [ 1:00] still working on step 2 of 2
  [ 1:09] step 3 of 2: ` + strings.Repeat("x", 107) + `…
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestConsoleIsSilentWithoutABuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out testbed.Log
		stop := newConsole(&out).watch()
		time.Sleep(time.Minute)
		stop()
		if out.String() != "" {
			t.Errorf("printed %q", out.String())
		}
	})
}
