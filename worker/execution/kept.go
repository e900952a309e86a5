package execution

import (
	"slices"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// freeKept of the output of a job is not charged: most have no more.
	freeKept = 2 * minStreamInline
	// keptStep is how much is charged at a time. It counts as large (budget.SmallBytes).
	keptStep = 256 << 10
	// leastInline is what the result has of a stream where there is no memory even for minStreamInline: a job may have hundreds.
	leastInline = 1 << 10
	// entryBytes is what an entry of a displayed value takes beside its text.
	entryBytes = 256
)

const noRoomForValues = "The worker had no memory for more displayed values; the rest was left out."

// kept is what a collector keeps of the output for the record, for as long as the job runs. It is charged as spools are, without waiting, so
// code that prints something and then runs for hours delays no other job.
type kept struct {
	bytes int64
	hold  *budget.Hold // nil: nothing is charged
}

// charge counts n more bytes, if there is memory for them.
func (c *collector) charge(n int64) bool {
	k := &c.inMemory
	if short := k.bytes + n - freeKept - k.hold.Bytes(); short > 0 {
		short = (short + keptStep - 1) / keptStep * keptStep
		if k.hold == nil {
			hold, ok := c.room.memory.TryAcquire(c.job.Tenant, short)
			if !ok {
				return false
			}
			k.hold = hold
		} else if !k.hold.Grow(short) {
			return false
		}
	}
	k.bytes += n
	return true
}

// giveBack is charge for bytes that are not kept any more.
func (c *collector) giveBack(n int64) {
	c.inMemory.bytes -= n
	c.inMemory.hold.Keep((c.inMemory.bytes - freeKept + keptStep - 1) / keptStep * keptStep)
}

// makeRoom charges what a stream keeps once it has n more bytes. Where nothing is left the stream is cut shorter, as if its limit were lower.
func (c *collector) makeRoom(s *sink, n int) {
	for _, limit := range []int{minStreamInline, leastInline} {
		if c.charge(s.more(n)) {
			return
		}
		before := s.inlined()
		s.cut(limit)
		c.giveBack(int64(before - s.inlined()))
	}
	c.inMemory.bytes += s.more(n)
}

// more is by how much n bytes lengthen what is kept.
func (s *sink) more(n int) int64 {
	return min(s.total+int64(n), int64(s.limit)) - int64(s.inlined())
}

// chargeRestored charges what a snapshot has brought. Streams without room are cut, and values are left out.
func (c *collector) chargeRestored() {
	for _, o := range c.outputs {
		for _, s := range o.both() {
			c.inMemory.bytes += int64(s.inlined())
			c.makeRoom(s, 0)
		}
	}
	c.rich = slices.DeleteFunc(c.rich, func(r farm.RichResult) bool {
		if c.charge(weight(r)) {
			return false
		}
		if r.Artifact != nil { // it is in the object store
			c.inMemory.bytes += weight(r)
			return false
		}
		c.inline -= inlineSize(r)
		c.note(noRoomForValues)
		return true
	})
}

// weight is what an entry of a displayed value takes.
func weight(r farm.RichResult) int64 {
	return int64(len(r.Data)+len(r.Metadata)+len(r.DisplayID)) + entryBytes
}
