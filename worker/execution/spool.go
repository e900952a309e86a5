package execution

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// spoolStep is how much a spool reserves at a time: a part of an upload, and the frame that completes it.
const spoolStep = blob.PartBytes + 64<<10

// errNoRoom says that neither memory nor disk had room for a spool.
var errNoRoom = errors.New("no memory and no disk space are left for the output")

// room is where spools are. Its budgets are asked with TryAcquire and Grow only, so they never block: output cannot deadlock, and
// code that prints a little and then runs for hours delays no other job.
type room struct {
	memory *budget.Budget // nil: without limit
	disk   *budget.Budget // nil: nothing is written to disk
	dir    string         // of the files; "": the temporary directory
}

// spool is a queue of bytes: what a stream has after the last part that was sent. It is in memory while the tenant's share of the staging
// memory lasts, then in an unlinked file while that of the disk lasts. The zero value is empty, with room without limit.
type spool struct {
	room     room
	tenant   string
	hold     *budget.Hold // of memory or, with a file, of the disk
	reserved int64        // bytes that hold covers

	memory []byte
	file   *os.File
	size   int64 // of the file
}

// len is the number of bytes.
func (b *spool) len() int64 {
	if b.file != nil {
		return b.size
	}
	return int64(len(b.memory))
}

// add appends bytes. errNoRoom: they were not added, and the spool is as before.
func (b *spool) add(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if b.file == nil && b.reserve(b.room.memory, int64(len(p))) {
		if b.memory == nil {
			b.memory = make([]byte, 0, max(spoolStep, len(p)))
		}
		b.memory = append(b.memory, p...)
		return nil
	}
	if err := b.moveToFile(int64(len(p))); err != nil {
		return err
	}
	if _, err := b.file.WriteAt(p, b.size); err != nil {
		return fmt.Errorf("%w: %w", errNoRoom, err)
	}
	b.size += int64(len(p))
	return nil
}

// reserve makes the hold cover n more bytes, if the budget has them now.
func (b *spool) reserve(from *budget.Budget, n int64) bool {
	short := b.len() + n - b.reserved
	if short <= 0 {
		return true
	}
	step := (short + spoolStep - 1) / spoolStep * spoolStep
	if b.hold == nil {
		hold, ok := from.TryAcquire(b.tenant, step)
		if !ok {
			return false
		}
		b.hold = hold
	} else if !b.hold.Grow(step) {
		return false
	}
	b.reserved += step
	return true
}

// moveToFile moves the spool into a file with room for n more bytes, unless it is in one that has it.
func (b *spool) moveToFile(n int64) error {
	if b.room.disk == nil {
		return errNoRoom
	}
	if b.file != nil {
		if !b.reserve(b.room.disk, n) {
			return errNoRoom
		}
		return nil
	}
	onDisk := spool{room: b.room, tenant: b.tenant}
	if !onDisk.reserve(b.room.disk, b.len()+n) {
		return errNoRoom
	}
	file, err := os.CreateTemp(b.room.dir, "sandfarm-output-*")
	if err == nil {
		err = os.Remove(file.Name()) // it ends with the process
	}
	if err == nil {
		_, err = file.WriteAt(b.memory, 0)
	}
	if err != nil {
		onDisk.hold.Release()
		if file != nil {
			_ = file.Close()
		}
		return fmt.Errorf("%w: %w", errNoRoom, err)
	}
	onDisk.file, onDisk.size = file, b.len()
	b.hold.Release()
	*b = onDisk
	return nil
}

// first reads the first n bytes; the spool must not change meanwhile.
func (b *spool) first(n int64) io.ReadSeeker {
	if b.file != nil {
		return io.NewSectionReader(b.file, 0, n)
	}
	return bytes.NewReader(b.memory[:n])
}

// drop removes the first n bytes.
func (b *spool) drop(n int64) error {
	if n >= b.len() {
		b.close()
		return nil
	}
	if b.file == nil {
		b.memory = b.memory[:copy(b.memory, b.memory[n:])]
		return nil
	}
	rest := io.NewSectionReader(b.file, n, b.size-n)
	if _, err := io.Copy(io.NewOffsetWriter(b.file, 0), rest); err != nil {
		return fmt.Errorf("move spooled output: %w", err)
	}
	b.size -= n
	if err := b.file.Truncate(b.size); err != nil {
		return fmt.Errorf("shorten spooled output: %w", err)
	}
	return nil
}

// close empties the spool and gives back what it has reserved. It can be used again.
func (b *spool) close() {
	if b.file != nil {
		_ = b.file.Close()
	}
	b.hold.Release()
	*b = spool{room: b.room, tenant: b.tenant}
}

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

// makeRoom charges what a stream keeps once it has more bytes. Where nothing is left the stream is cut shorter, as if its limit were lower.
func (c *collector) makeRoom(s *sink, p []byte) {
	for _, limit := range []int{minStreamInline, leastInline} {
		if c.charge(s.more(p)) {
			return
		}
		before := s.inlined()
		s.cut(limit)
		c.giveBack(int64(before - s.inlined()))
	}
	c.inMemory.bytes += s.more(p)
}

// more is by how much bytes lengthen what is kept.
func (s *sink) more(p []byte) int64 {
	if s.stream.truncated() {
		return 0
	}
	return min(s.cost+int64(costOf(p)), int64(s.limit)) - int64(s.inlined())
}

// weight is what an entry of a displayed value takes.
func weight(r farm.RichResult) int64 {
	return int64(len(r.Data)+len(r.Metadata)+len(r.DisplayID)) + entryBytes
}
