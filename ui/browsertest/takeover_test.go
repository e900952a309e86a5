//go:build browser

package browsertest

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// counts prints numbers until a file is there.
const counts = `
import os, time
n = 0
while not os.path.exists("enough"):
    n += 1
    print("line", n, flush=True)
    time.sleep(0.2)
print("the end after", n)
`

func TestAJobIsFollowedWhileItsWorkerIsKilled(t *testing.T) {
	t.Parallel()
	parts := faulttest.New(t, faulttest.Config{Program: program(), MinIO: os.Getenv("SANDFARM_TEST_MINIO"), Schedulers: 1})
	box := parts.Box(wire.CreateRequest{Name: "counting"})
	f := &testFarm{t: t, url: parts.URL()}
	job := call[record](f, "", "POST", "/v1/sandboxes/"+box+"/execute", map[string]any{"code": counts, "timeout_seconds": 600})
	p := openPage(t, f, "#/jobs/"+job.ID)
	p.sees("line 3")
	p.sees("running")
	parts.Kill(parts.Workers()...)
	before := value[int](p, last)
	parts.Start(parts.Workers()...)
	parts.AwaitReady()
	p.until(fmt.Sprintf(`%s > %d`, last, before+20))
	call[struct{}](f, "", http.MethodPut, "/v1/sandboxes/"+box+"/fs/workspace/enough", nil)
	p.sees("the end after")
	p.until(`Boolean(document.querySelector(".bar-head .badge.good"))`)
	p.sees("attempts")
	lines := strings.Split(strings.TrimSpace(value[string](p, `document.querySelector(".output pre.text").textContent`)), "\n")
	for i, line := range lines[:len(lines)-1] {
		if want := fmt.Sprintf("line %d", i+1); line != want {
			t.Fatalf("the page shows %q where %q belongs", line, want)
		}
	}
	if want := fmt.Sprintf("the end after %d", len(lines)-1); lines[len(lines)-1] != want {
		t.Errorf("the page ends with %q instead of %q", lines[len(lines)-1], want)
	}
	p.accessible("a job that was taken over")
}

// last is the number of the last line on the page.
const last = `Number(([...document.querySelectorAll(".output pre.text")].map((one) => one.textContent).join("").match(/line (\d+)\n(?!.*line \d+\n)/s) || [0, 0])[1])`
