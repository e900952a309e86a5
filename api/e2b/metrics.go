package e2b

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// metricEvery is how far apart E2B's metrics are: theirs are averages of so long a time, and their times are multiples of it.
const metricEvery = 5 * time.Second

// metric is what a sandbox used at a moment.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"` // of all its cores
	MemUsed       int64     `json:"memUsed"`    // bytes, as the rest
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// Metrics answers with what a sandbox uses now: the farm keeps no figures of before. There are none of a time that has no now, nor of a
// paused sandbox.
func (d *Door) Metrics(c *gin.Context) error {
	s, err := d.open(c)
	if err != nil {
		return err
	}
	at := d.Now().UTC().Truncate(metricEvery)
	within := true
	for name, early := range map[string]bool{"start": true, "end": false} {
		text := c.Query(name)
		if text == "" {
			continue
		}
		bound, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return rest.BadRequestf("%s is %q; it is a number of seconds since 1970.", name, farm.Shorten(text))
		}
		within = within && (early && at.Unix() >= bound || !early && at.Unix() <= bound)
	}
	out := []metric{}
	if !within || !farm.SandboxState(s.State).Reachable() {
		return rest.Reply(c, http.StatusOK, out)
	}
	use, err := d.Service.SandboxUse(c.Request.Context(), rest.Tenant(c), s.ID)
	if err != nil {
		return err
	}
	const mib = 1 << 20
	out = append(out, metric{
		Timestamp: at, TimestampUnix: at.Unix(), CPUCount: int(math.Ceil(s.Resources.CPUs)), CPUUsedPct: math.Round(1e4*use.Cores/s.Resources.CPUs) / 100,
		MemUsed: use.MemoryBytes, MemTotal: int64(s.Resources.MemoryMB) * mib, MemCache: use.CacheBytes, DiskUsed: use.DiskBytes, DiskTotal: int64(s.Resources.DiskMB) * mib,
	})
	return rest.Reply(c, http.StatusOK, out)
}
