package farm

import "time"

// ActivityKept is how far back the farm's activity goes.
const ActivityKept = time.Hour

// Minute is what became of the jobs that ended in one minute. Sums can be added up.
type Minute struct {
	At     int64 `json:"at"`     // minutes since 1970
	Ended  int   `json:"ended"`  // jobs, however they ended
	Failed int   `json:"failed"` // of them, those that did not complete and were not canceled
	// Sums over the jobs, in milliseconds: from the acceptance to the claim, and in the sandbox.
	WaitMS int64 `json:"wait"`
	RunMS  int64 `json:"run"`
	// MaxWaitMS is the longest wait of a job.
	MaxWaitMS int64 `json:"max_wait"`
	// Queues counts the jobs by the queue that they came from; the records of releases that did not have it say nothing.
	Queues map[string]int `json:"queues,omitempty"`
}

// MinuteOf is the number of a time's minute.
func MinuteOf(t time.Time) int64 { return t.Unix() / 60 }

// Plus adds up what two workers say of a minute.
func (m Minute) Plus(o Minute) Minute {
	sum := Minute{
		At: m.At, Ended: m.Ended + o.Ended, Failed: m.Failed + o.Failed, WaitMS: m.WaitMS + o.WaitMS, RunMS: m.RunMS + o.RunMS,
		MaxWaitMS: max(m.MaxWaitMS, o.MaxWaitMS),
	}
	for _, queues := range []map[string]int{m.Queues, o.Queues} {
		for name, n := range queues {
			if sum.Queues == nil {
				sum.Queues = map[string]int{}
			}
			sum.Queues[name] += n
		}
	}
	return sum
}
