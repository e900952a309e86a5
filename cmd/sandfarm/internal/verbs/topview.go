package verbs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// line is a line of the page of top.
type line struct{ text, style string }

// seenLate is the age at which a heartbeat is late: workers send one every few seconds.
const seenLate = 10 * time.Second

// page renders a snapshot.
func page(url string, s snapshot, now time.Time) []line {
	lines := []line{{text: summary(url, s, now), style: bold}}
	if text := lastHour(s.Activity); text != "" {
		lines = append(lines, line{text: text})
	}
	if s.partial {
		lines = append(lines, line{text: "Your part of the farm: all of it needs the scope admin."})
	}
	lines = append(lines, line{})
	rows := make([][]string, len(s.Queues))
	bad := make([]bool, len(s.Queues))
	for i, q := range s.Queues {
		servers := serving(s.Workers, q.Name)
		bad[i] = servers == nobody && q.Depth > 0
		rows[i] = []string{q.Name, fmt.Sprint(q.Depth), fmt.Sprint(q.Running), age(q.OldestSeconds), rate(q.EndedPerMinute), servers}
	}
	lines = append(lines, columns([]string{"QUEUE", "WAITING", "RUNNING", "OLDEST", "PER MINUTE", "SERVED BY"}, rows, bad)...)
	lines = append(lines, line{})
	rows, bad = make([][]string, len(s.Workers)), make([]bool, len(s.Workers))
	for i, w := range s.Workers {
		bad[i] = w.Problem != "" || now.Sub(w.SeenAt) > seenLate
		rows[i] = []string{
			w.Host, cut(workerState(w), maxStateWidth), workerJobs(w), fmt.Sprint(w.Sandboxes), memory(w.Promised.MemoryMB, w.Capacity.MemoryMB),
			cores(w.Promised.CPUs, w.Capacity.CPUs), devices(w.GPUsLeased, w.GPUs), pool(w.Pool), span(now.Sub(w.StartedAt)), since(w.SeenAt, now), w.ID,
		}
	}
	if len(rows) == 0 && s.partial {
		return append(lines, line{text: "No live worker has a sandbox of yours."})
	}
	if len(rows) == 0 {
		return append(lines, line{text: "No live worker: jobs wait until one starts.", style: red})
	}
	return append(lines, columns([]string{"HOST", "STATE", "JOBS", "SANDBOXES", "RESERVED MEMORY", "RESERVED CORES", "GPUS", "POOL", "UP", "SEEN", "WORKER"}, rows, bad)...)
}

// maxStateWidth bounds the state of a worker, so that other columns have room; "sandfarm workers" shows all of it.
const maxStateWidth = 32

// workerJobs is how many jobs a worker runs, and its slots; empty if the caller may not know.
func workerJobs(w wire.Worker) string {
	if w.Host == "" {
		return ""
	}
	return fmt.Sprintf("%d/%d", w.Running, w.Slots)
}

// summary is the first line, with totals.
func summary(url string, s snapshot, now time.Time) string {
	running, slots, waiting, callbacks, oldest := 0, 0, 0, 0, 0.0
	for _, w := range s.Workers {
		running, slots = running+w.Running, slots+w.Slots
	}
	for _, q := range s.Queues {
		if q.Name == farm.QueueCallbacks {
			callbacks += q.Depth
			continue
		}
		waiting, oldest = waiting+q.Depth, max(oldest, q.OldestSeconds)
	}
	text := fmt.Sprintf("%s  %s  %s", printable(url), now.Format("15:04:05"), farm.Plural(len(s.Workers), "worker"))
	if !s.partial { // the jobs of others are not shown
		text += fmt.Sprintf(", %d of %d slots in use", running, slots)
	}
	text += fmt.Sprintf(", %s waiting", farm.Plural(waiting, "job"))
	if oldest > 0 {
		text += ", the next since " + age(oldest)
	}
	if callbacks > 0 {
		text += ", " + farm.Plural(callbacks, "callback") + " to deliver"
	}
	return text
}

// lastHour sums up the last hour; empty if it is not known.
func lastHour(minutes []wire.Minute) string {
	if len(minutes) == 0 {
		return ""
	}
	ended, failed, longest := 0, 0, 0.0
	for _, m := range minutes {
		ended, failed, longest = ended+m.Ended, failed+m.Failed, max(longest, m.MaxWaitMS)
	}
	text := fmt.Sprintf("last hour: %s ended, %d failed, timed out or lost", farm.Plural(ended, "job"), failed)
	if ended > 0 {
		text += fmt.Sprintf(", longest wait %.1fs", longest/1000)
	}
	return text
}

// rate is a number of jobs in a minute; empty for none.
func rate(perMinute float64) string {
	if perMinute <= 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", perMinute)
}

// nobody is shown as the host of a queue that no live worker serves.
const nobody = "nobody"

// serving names the hosts whose workers serve a queue.
func serving(workers []wire.Worker, queue string) string {
	var hosts []string
	for _, w := range workers {
		if slices.Contains(w.Queues, queue) && !slices.Contains(hosts, w.Host) {
			hosts = append(hosts, w.Host)
		}
	}
	slices.Sort(hosts)
	switch n := len(hosts); {
	case n == 0:
		return nobody
	case n > 4:
		return fmt.Sprintf("%s and %d more", strings.Join(hosts[:3], ", "), n-3)
	default:
		return strings.Join(hosts, ", ")
	}
}

// age is a rounded number of seconds for people; empty if nothing waits.
func age(seconds float64) string {
	if seconds <= 0 {
		return ""
	}
	return span(time.Duration(seconds * float64(time.Second)))
}

func memory(used, all int) string {
	if all == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f/%.1f GiB", float64(used)/1024, float64(all)/1024)
}

func cores(used, all float64) string {
	if all == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f/%.1f", used, all)
}

// pool is the number of ready pool members of a node and its target.
func pool(stock []wire.PoolStock) string {
	ready, target := 0, 0
	for _, p := range stock {
		ready, target = ready+p.Ready, target+p.Target
	}
	if ready+target == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", ready, target)
}

// devices is the number of leased GPUs and of all, with their models.
func devices(used int, all []wire.GPUDevice) string {
	if len(all) == 0 {
		return ""
	}
	models := []string{}
	for _, d := range all {
		if !slices.Contains(models, d.Model) {
			models = append(models, d.Model)
		}
	}
	slices.Sort(models)
	return fmt.Sprintf("%d/%d %s", used, len(all), strings.Join(models, ", "))
}

// columns lays out rows below a header; bad rows are red.
func columns(head []string, rows [][]string, bad []bool) []line {
	var text bytes.Buffer
	_ = table(&text, head, rows) // a buffer does not fail
	var lines []line
	for i, row := range strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n") {
		l := line{text: strings.TrimRight(row, " ")}
		if i == 0 {
			l.style = bold
		} else if bad[i-1] {
			l.style = red
		}
		lines = append(lines, l)
	}
	return lines
}

// plain is a page without colors.
func plain(lines []line) string {
	var text strings.Builder
	for _, l := range lines {
		text.WriteString(l.text + "\n")
	}
	return text.String()
}
