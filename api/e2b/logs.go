package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// logLimit is how many lines an answer has at most, and by default.
	logLimit = 1000
	// logPages bounds the pages of jobs that one answer reads, of rest.PageMax jobs each: those of older jobs are not shown.
	logPages = 10
	// maxLogTime is the latest time that a query may name, in milliseconds since 1970.
	maxLogTime = 1<<53 - 1
	// maxSearch is the length of the text that lines are searched for, in bytes.
	maxSearch = 256
)

// The levels of lines, from the lowest.
const (
	levelDebug = "debug"
	levelInfo  = "info"
	levelWarn  = "warn"
	levelError = "error"
)

// logLine is a line of a sandbox's log, as the newer route shows it.
type logLine struct {
	Timestamp time.Time         `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

// plainLine is a line as the older route shows it: an object of JSON as text.
type plainLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}

// logQuery says which lines are asked for.
type logQuery struct {
	from, to time.Time // zero: not bounded; to is not within
	backward bool      // from the newest line
	limit    int
	level    string // the lowest; "": all
	search   string // a part of the message
}

// Logs answers with what happened in a sandbox: when its jobs and processes began and ended, and how. What they printed is not there. The log
// can be read as long as the sandbox's record. old is the route before /v2.
func (d *Gateway) Logs(old bool) func(*gin.Context) error {
	return func(c *gin.Context) error {
		q, err := queryOfLogs(c, old)
		if err != nil {
			return err
		}
		shown := c.Param("id")
		box, err := d.Service.Sandbox(c.Request.Context(), rest.Tenant(c), SandboxID(shown))
		if farm.CodeOf(err) == farm.CodeNotFound {
			return farm.NotFoundf("There is no sandbox %q.", farm.Shorten(shown))
		} else if err != nil {
			return err
		}
		lines, err := d.lines(c.Request.Context(), rest.Tenant(c), &box)
		if err != nil {
			return err
		}
		lines = q.pick(lines)
		if !old {
			return rest.Reply(c, http.StatusOK, map[string]any{"logs": lines})
		}
		plain := []plainLine{}
		for _, l := range lines {
			plain = append(plain, l.plain())
		}
		return rest.Reply(c, http.StatusOK, map[string]any{"logs": plain, "logEntries": lines})
	}
}

// queryOfLogs reads the query of a log. Times are milliseconds since 1970.
func queryOfLogs(c *gin.Context, old bool) (q logQuery, err error) {
	number := func(name string, standard, bound int64) (int64, error) {
		text := c.Query(name)
		if text == "" {
			return standard, nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > bound {
			return 0, rest.BadRequestf("%s is %q; it is a whole number from 0 to %d.", name, farm.Shorten(text), bound)
		}
		return n, nil
	}
	limit, err := number("limit", logLimit, logLimit)
	if err != nil {
		return q, err
	}
	q.limit = int(limit)
	name := "cursor"
	if old {
		name = "start"
	}
	const never = -1
	at, err := number(name, never, maxLogTime)
	if err != nil {
		return q, err
	}
	bound := &q.from
	if !old {
		switch direction := c.Query("direction"); direction {
		case "", "forward":
		case "backward":
			q.backward, bound = true, &q.to
		default:
			return q, rest.BadRequestf("direction is %q; it is forward or backward.", farm.Shorten(direction))
		}
		if q.level = c.Query("level"); q.level != "" && rank(q.level) < 0 {
			return q, rest.BadRequestf("level is %q; it is debug, info, warn or error.", farm.Shorten(q.level))
		}
		if q.search = c.Query("search"); len(q.search) > maxSearch {
			return q, rest.BadRequestf("search has %d bytes; it has at most %d.", len(q.search), maxSearch)
		}
	}
	if at != never {
		*bound = time.UnixMilli(at)
	}
	return q, nil
}

// rank orders the levels; -1: there is no such level.
func rank(level string) int {
	return slices.Index([]string{levelDebug, levelInfo, levelWarn, levelError}, level)
}

// pick sorts lines and takes those that are asked for.
func (q logQuery) pick(lines []logLine) []logLine {
	slices.SortStableFunc(lines, func(a, b logLine) int { return a.Timestamp.Compare(b.Timestamp) })
	if q.backward {
		slices.Reverse(lines)
	}
	out := []logLine{}
	for _, l := range lines {
		if len(out) == q.limit {
			break
		}
		within := !l.Timestamp.Before(q.from) && (q.to.IsZero() || l.Timestamp.Before(q.to))
		if within && rank(l.Level) >= rank(cmp.Or(q.level, levelDebug)) && strings.Contains(l.Message, q.search) {
			out = append(out, l)
		}
	}
	return out
}

// plain is the line with its fields as one object. E2B's command line reads level and logger.
func (l logLine) plain() plainLine {
	all := maps.Clone(l.Fields)
	all["level"], all["message"] = l.Level, l.Message
	text, _ := json.Marshal(all) // strings always encode
	return plainLine{l.Timestamp, string(text)}
}

// lines are those of a sandbox: of its jobs, its end and its processes, each from the oldest.
func (d *Gateway) lines(ctx context.Context, tenant string, box *wire.Sandbox) (out []logLine, err error) {
	q := service.JobQuery{SandboxID: box.ID, Page: store.Page{Limit: rest.PageMax}, Brief: true}
	var newest [][]logLine
	for page := range logPages {
		if page > 0 { // each counts as a request
			if _, err := d.Gate.More(ctx, tenant, 1); err != nil {
				return nil, err
			}
		}
		jobs, err := d.Service.Jobs(ctx, tenant, q)
		if err != nil {
			return nil, err
		}
		for i := range jobs.Items {
			newest = append(newest, linesOfJob(&jobs.Items[i]))
		}
		budget.Keep(ctx, 0) // of results nothing is left
		if q.Page.Cursor = string(jobs.NextCursor); q.Page.Cursor == "" {
			break
		}
	}
	for _, l := range slices.Backward(newest) {
		out = append(out, l...)
	}
	if box.ClosedAt != nil {
		level := levelInfo
		if box.State == string(farm.SandboxFailed) || box.State == string(farm.SandboxLost) {
			level = levelError
		}
		out = append(out, line(*box.ClosedAt, level, "sandbox", "The sandbox is "+box.State+".", map[string]string{"state": box.State, "reason": box.Reason}))
	}
	if !farm.SandboxState(box.State).Reachable() {
		return out, nil
	}
	all, err := d.Service.Processes(ctx, tenant, box.ID, false)
	if err != nil {
		return nil, err
	}
	for i := range all.Items {
		out = append(out, linesOfProcess(&all.Items[i])...)
	}
	return out, nil
}

// line makes a line. Fields without a value are left out.
func line(at time.Time, level, logger, message string, fields map[string]string) logLine {
	fields["logger"] = logger
	maps.DeleteFunc(fields, func(_, value string) bool { return value == "" })
	return logLine{Timestamp: at.UTC(), Level: level, Message: message, Fields: fields}
}

// linesOfJob are those of a job: one of its start, one of its end.
func linesOfJob(job *wire.Job) (out []logLine) {
	fields := func() map[string]string { return map[string]string{"job_id": job.ID, "kind": job.Kind} }
	if job.StartedAt != nil {
		out = append(out, line(*job.StartedAt, levelInfo, "job", "The job "+job.Kind+" started.", fields()))
	}
	if job.FinishedAt == nil {
		return out
	}
	level, more := levelInfo, fields()
	switch farm.JobState(job.State) {
	case farm.JobFailed, farm.JobTimedOut, farm.JobLost:
		level = levelError
	case farm.JobCanceled:
		level = levelWarn
	default:
	}
	more["state"] = job.State
	if job.Error != nil {
		more["error"] = job.Error.Message
	}
	if job.Result != nil && job.Result.Execute != nil {
		more["exit_code"] = strconv.Itoa(job.Result.Execute.ExitCode)
		if raised := job.Result.Execute.Error; raised != nil {
			more["error"] = raised.Name
		}
	}
	return append(out, line(*job.FinishedAt, level, "job", "The job "+job.Kind+" is "+job.State+".", more))
}

// linesOfProcess are those of a process.
func linesOfProcess(p *wire.Process) []logLine {
	fields := func() map[string]string {
		return map[string]string{"process_id": p.ID, "name": p.Name, "command": farm.Shorten(cmp.Or(p.Command, strings.Join(p.Argv, " ")))}
	}
	out := []logLine{line(p.StartedAt, levelInfo, "process", "The process started.", fields())}
	if p.EndedAt == nil {
		return out
	}
	more := fields()
	if p.ExitCode != nil {
		more["exit_code"] = strconv.Itoa(*p.ExitCode)
	}
	switch {
	case p.OutOfMemory:
		return append(out, line(*p.EndedAt, levelError, "process", "The process was ended: out of memory.", more))
	case p.TimedOut:
		return append(out, line(*p.EndedAt, levelError, "process", "The process was ended: its time was over.", more))
	}
	return append(out, line(*p.EndedAt, levelInfo, "process", "The process ended.", more))
}

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
func (d *Gateway) Metrics(c *gin.Context) error {
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
