//go:build integration

package dispatch_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// violations are what is wrong in the stored data of a tenant, whatever happened before: every index must say the same as the records.
func (r *records) violations(share, maxRunning int) []string {
	c := &checker{r: r, rest: maps.Clone(r.dump)}
	c.jobs()
	c.boxes()
	c.queues(share, maxRunning)
	c.remaining()
	return c.found
}

// checker compares the keys of a tenant with its records. It removes each key that it has checked.
type checker struct {
	r     *records
	rest  storetest.Dump
	found []string
}

func (c *checker) fail(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

func (c *checker) take(key string) (storetest.Value, bool) {
	v, ok := c.rest[key]
	delete(c.rest, key)
	return v, ok
}

// zset compares a sorted set.
func (c *checker) zset(key string, want map[string]int64) {
	v, _ := c.take(key)
	got := map[string]int64{}
	for member, score := range v.Sorted {
		f, _ := strconv.ParseFloat(score, 64)
		got[member] = int64(f)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		c.fail("%s differs from the records (-records +%s):\n%s", key, key, diff)
	}
}

func (c *checker) jobs() {
	open, all, callbacks := map[string]int64{}, map[string]int64{}, map[string]bool{}
	charged, kept := 0, map[string]string{}
	unfinished, listed, fifos, stops := map[string]map[string]int64{}, map[string]map[string]int64{}, map[string][]string{}, map[string][]string{}
	put := func(m map[string]map[string]int64, box, id string, seq int64) {
		if m[box] == nil {
			m[box] = map[string]int64{}
		}
		m[box][id] = seq
	}
	for _, id := range c.r.jobIDs() {
		j := c.r.Jobs[id]
		record, _ := c.take("job:" + id)
		events, _ := c.take("ev:" + id)
		_, request := c.take("req:" + id)
		_, checkpoint := c.take("cp:" + id)
		size, counted := record.Hash["size"] // records of the release before have none
		if j.State.Final() && counted {
			kept[id+" "+size] = "ended"
		} else if counted {
			n, _ := strconv.Atoi(size)
			charged += n
		}
		if !j.Hidden {
			all[id] = j.Seq
			put(listed, j.Box, id, j.Seq)
		}
		if n := len(events.Stream); n == 0 || record.Hash["ev"] != events.Stream[n-1][0] {
			c.fail("the last event of %s is %q in its record, but it has the events %v", id, record.Hash["ev"], events.Stream)
		}
		if j.GracefulRequeues > j.Attempt {
			c.fail("%s has %d attempts, of which %d do not count", id, j.Attempt, j.GracefulRequeues)
		}
		if j.State.Final() {
			if j.Calls {
				callbacks[id] = true
			}
			if record.TTL == 0 || events.TTL == 0 || request || checkpoint {
				c.fail("%s is %s, but expires after %d ms (its events after %d ms), has a request: %v, a checkpoint: %v", id, j.State, record.TTL, events.TTL, request, checkpoint)
			}
			if last := events.Stream[len(events.Stream)-1]; !strings.Contains(strings.Join(last, " "), `"state":"`+string(j.State)+`"`) {
				c.fail("the last event of %s, which is %s, is %v", id, j.State, last)
			}
			continue
		}
		open[id] = j.Seq
		put(unfinished, j.Box, id, j.Seq)
		if j.Kind == farm.KindInterrupt || j.Kind == farm.KindRestart {
			stops[j.Box] = append(stops[j.Box], id)
		}
		if j.waits() {
			fifos[j.Box] = append(fifos[j.Box], id)
			if j.State == farm.JobRunning && fifos[j.Box][0] != id {
				c.fail("%s runs behind %s in the FIFO of %s", id, fifos[j.Box][0], j.Box)
			}
		}
		if !request || record.TTL != 0 || events.TTL != 0 {
			c.fail("%s is %s, but has a request: %v, and expires after %d ms, its events after %d ms", id, j.State, request, record.TTL, events.TTL)
		}
		if (j.State == farm.JobRunning) != (j.Worker != "") || j.State == farm.JobRunning && j.Attempt == 0 {
			c.fail("%s is %s by the worker %q under attempt %d", id, j.State, j.Worker, j.Attempt)
		}
	}
	for _, id := range c.r.boxIDs() {
		record := c.r.dump["sbx:"+id].Hash
		size, counted := record["size"] // nor have these, and a run's while it closes
		if !counted {
			continue
		}
		if n, _ := strconv.Atoi(size); !c.r.Boxes[id].State.Final() {
			charged += n
		} else if record["needed"] == "1" { // nothing may remove it
			kept["sbx:"+id+" "+size] = "needed"
			charged += n
		} else {
			kept["sbx:"+id+" "+size] = "ended"
		}
	}
	c.memory(charged, kept)
	c.zset("open", open)
	c.zset("jobs", all)
	for _, box := range c.boxNames("osj:", unfinished) {
		c.zset("osj:"+box, orEmpty(unfinished[box]))
	}
	for _, box := range c.boxNames("sj:", listed) {
		c.zset("sj:"+box, orEmpty(listed[box]))
	}
	for _, box := range c.boxNames("line:", fifos) {
		v, _ := c.take("line:" + box)
		if diff := gocmp.Diff(fifos[box], v.List); diff != "" {
			c.fail("the FIFO of %s differs from the records (-records +FIFO):\n%s", box, diff)
		}
	}
	for _, box := range c.boxNames("stops:", stops) {
		v, _ := c.take("stops:" + box)
		if diff := gocmp.Diff(present(stops[box]), present(slices.Collect(maps.Keys(v.Hash)))); diff != "" {
			c.fail("the interrupts and restarts of %s differ from the records (-records +stops):\n%s", box, diff)
		}
	}
	due, _ := c.take("callbacks")
	if diff := gocmp.Diff(callbacks, present(slices.Collect(maps.Keys(due.Sorted)))); diff != "" {
		c.fail("callbacks differ from the records (-records +callbacks):\n%s", diff)
	}
}

func (c *checker) boxes() {
	all, open, due, nodes := map[string]int64{}, map[string]int64{}, map[string]int64{}, map[string]map[string]bool{}
	use := map[string]int64{}
	for _, id := range c.r.boxIDs() {
		b := c.r.Boxes[id]
		record, _ := c.take("sbx:" + id)
		all[id] = b.Seq
		if b.State.Final() {
			if record.TTL == 0 || b.charge != "" {
				c.fail("sandbox %s is %s, but expires after %d ms, and is charged %q", id, b.State, record.TTL, b.charge)
			}
			continue
		}
		if b.Node != "" || b.State == farm.SandboxClosing {
			if nodes[b.Node] == nil {
				nodes[b.Node] = map[string]bool{}
			}
			nodes[b.Node][id] = true
		}
		if b.State != farm.SandboxClosing {
			due[id] = b.due()
		}
		if record.TTL != 0 {
			c.fail("sandbox %s is %s, but expires after %d ms", id, b.State, record.TTL)
		}
		var memory, cores, gpus int64
		if _, err := fmt.Sscan(b.charge, &memory, &cores, &gpus); err != nil {
			c.fail("sandbox %s is %s, and is charged %q", id, b.State, b.charge)
		}
		use["mem"], use["mcpu"], use["gpus"] = use["mem"]+memory, use["mcpu"]+cores, use["gpus"]+gpus
		if !b.open && c.ranOnce(b) {
			continue
		}
		open[id] = b.Seq
		if busy := c.busy(id); (b.State == farm.SandboxBusy) != busy && (b.State == farm.SandboxBusy || b.State == farm.SandboxReady) {
			c.fail("sandbox %s is %s, but a job of its FIFO runs: %v", id, b.State, busy)
		}
	}
	c.zset("boxes", all)
	c.zset("openboxes", open)
	c.zset("due", due)
	counted, _ := c.take("use")
	for _, name := range []string{"mem", "mcpu", "gpus"} {
		if n, _ := strconv.ParseInt(cmpOr(counted.Hash[name], "0"), 10, 64); n != use[name] {
			c.fail("%d %s are counted, the open sandboxes have %d", n, name, use[name])
		}
	}
	c.nodeIndex(nodes)
}

// ranOnce reports whether a sandbox is closing after the end of its run.
func (c *checker) ranOnce(b *boxRecord) bool {
	for _, j := range c.r.Jobs {
		if j.Box == b.ID && j.Kind == farm.KindRun {
			return b.State == farm.SandboxClosing && j.State.Final()
		}
	}
	return false
}

// busy reports whether work of the FIFO runs in a sandbox.
func (c *checker) busy(box string) bool {
	fifo := c.r.fifo(box)
	if len(fifo) == 0 {
		return false
	}
	j := c.r.Jobs[fifo[0]]
	switch j.Kind {
	case farm.KindExecute, farm.KindCommand, farm.KindFile, farm.KindInstall:
		return j.State == farm.JobRunning
	default:
		return false
	}
}

// nodeIndex checks the index of the open sandboxes of each node.
func (c *checker) nodeIndex(nodes map[string]map[string]bool) {
	indexed := map[string]map[string]bool{}
	for name, v := range c.r.dump {
		if node, ok := strings.CutPrefix(name, "on:"); ok {
			indexed[node] = present(v.Set)
			delete(c.rest, name)
		}
	}
	if diff := gocmp.Diff(nodes, indexed); diff != "" {
		c.fail("the open sandboxes of nodes (-records +index):\n%s", diff)
	}
	used, _ := c.take("nodes")
	if diff := gocmp.Diff(slices.Sorted(maps.Keys(nodes)), slices.Sorted(slices.Values(used.Set))); diff != "" {
		c.fail("the nodes in use (-records +index):\n%s", diff)
	}
}

// queues checks slots, parked jobs, and the jobs that count as running.
func (c *checker) queues(share, maxRunning int) {
	slots, parked := map[string]map[string]int64{}, map[string]map[string]int64{}
	active := map[string]bool{}
	for name, v := range c.r.dump {
		kind, queue, _ := strings.Cut(name, ":")
		if kind != "out" && kind != "held" {
			continue
		}
		delete(c.rest, name)
		of := slots
		if kind == "held" {
			of = parked
		}
		of[queue] = map[string]int64{}
		for id, score := range v.Sorted {
			f, _ := strconv.ParseFloat(score, 64)
			of[queue][id] = int64(f)
			switch j := c.r.Jobs[id]; {
			case j == nil || j.State.Final() || j.State == farm.JobRunning && (!j.Inline || kind == "held") || j.waitsIn != queue:
				c.fail("%s is in %s, but its record is %+v", id, name, j)
			case j.Created != of[queue][id]:
				c.fail("%s is in %s with the score %s, but was accepted at %d", id, name, score, j.Created)
			}
		}
	}
	for _, id := range c.r.jobIDs() {
		j := c.r.Jobs[id]
		_, slot := slots[j.waitsIn][id]
		_, waits := parked[j.waitsIn][id]
		needs := j.Kind != farm.KindClose && (j.State == farm.JobQueued && c.r.turn(id) || j.State == farm.JobRunning && j.Inline)
		if needs != (j.waitsIn != "") || needs && slot == waits {
			c.fail("%s is %s, needs a slot: %v; it waits in queue %q, has a slot: %v, is parked: %v", id, j.State, needs, j.waitsIn, slot, waits)
		}
		if !j.Inline && (j.State == farm.JobRunning || slot) {
			active[id] = true
		}
	}
	counted, _ := c.take("act")
	if diff := gocmp.Diff(active, present(counted.Set)); diff != "" {
		c.fail("the jobs that count as running (-records +counted):\n%s", diff)
	}
	queues, _ := c.take("holds")
	for queue, jobs := range parked {
		if len(jobs) == 0 {
			continue
		}
		if !slices.Contains(queues.Set, queue) {
			c.fail("%d jobs are parked in %s, which is not among the queues with parked jobs", len(jobs), queue)
		}
		first := slices.MinFunc(slices.Collect(maps.Keys(jobs)), func(a, b string) int { return int(jobs[a] - jobs[b]) })
		if len(slots[queue]) < share && (c.r.Jobs[first].Inline || maxRunning < 0 || len(active) < maxRunning) {
			c.fail("%s is parked in %s, where %d of %d slots are used, and %d of %d jobs run", first, queue, len(slots[queue]), share, len(active), maxRunning)
		}
	}
}

// memory compares what is counted for jobs and sandboxes in Redis: charged bytes of what is unfinished, open or needed, and those that have ended, with what
// each keeps, by the index that has it.
func (c *checker) memory(charged int, kept map[string]string) {
	counts, _ := c.take("mem")
	indexed, finished := map[string]string{}, 0
	for _, index := range []string{"ended", "needed"} {
		members, _ := c.take(index)
		for member := range members.Sorted {
			indexed[member] = index
			_, size, _ := strings.Cut(member, " ")
			if n, _ := strconv.Atoi(size); index == "ended" {
				finished += n
			}
		}
	}
	if diff := gocmp.Diff(kept, indexed); diff != "" {
		c.fail("the index of what finished jobs and sandboxes keep differs from the records (-records +index):\n%s", diff)
	}
	for name, want := range map[string]int{"unfinished": charged, "finished": finished} {
		if got, _ := strconv.Atoi(counts.Hash[name]); got != want {
			c.fail("%s jobs have %d bytes, but %d are counted", name, want, got)
		}
	}
}

// remaining fails for keys that belong to no record.
func (c *checker) remaining() {
	for name := range c.rest {
		kind, _, _ := strings.Cut(name, ":")
		switch kind {
		case "seq", "quota", "stored", "kept", "idem", "pkg", "docs", "audit", "usage", "mf", "mfs", "mfexp", "mfbox":
		default:
			c.fail("the key %s belongs to no record", name)
		}
	}
}

// boxNames are the sandboxes that have a key of this kind, or should.
func (c *checker) boxNames(kind string, want any) []string {
	names := map[string]bool{}
	for name := range c.r.dump {
		if box, ok := strings.CutPrefix(name, kind); ok {
			names[box] = true
		}
	}
	switch want := want.(type) {
	case map[string]map[string]int64:
		for box := range want {
			names[box] = true
		}
	case map[string][]string:
		for box := range want {
			names[box] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func orEmpty(m map[string]int64) map[string]int64 {
	if m == nil {
		return map[string]int64{}
	}
	return m
}

func present(names []string) map[string]bool {
	out := map[string]bool{}
	for _, name := range names {
		out[name] = true
	}
	return out
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
