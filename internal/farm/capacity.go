package farm

// Capacity is memory and cores: what a node has for sandboxes, or what it promised to them.
type Capacity struct {
	MemoryMB int     `json:"memory_mb"` // MiB
	CPUs     float64 `json:"cpus"`      // cores
}

// Capacity is what a sandbox of these resources takes of its node.
func (r Resources) Capacity() Capacity { return Capacity{MemoryMB: r.MemoryMB, CPUs: r.CPUs} }

// Plus is both together.
func (r Capacity) Plus(other Capacity) Capacity {
	return Capacity{MemoryMB: r.MemoryMB + other.MemoryMB, CPUs: r.CPUs + other.CPUs}
}

// Minus is r without other, and never less than nothing.
func (r Capacity) Minus(other Capacity) Capacity {
	return Capacity{MemoryMB: max(r.MemoryMB-other.MemoryMB, 0), CPUs: max(r.CPUs-other.CPUs, 0)}
}

// roomSlack absorbs what sums of fractions lose: cores are counted in thousandths.
const roomSlack = 0.0005

// Within reports whether r fits into other.
func (r Capacity) Within(other Capacity) bool {
	return r.MemoryMB <= other.MemoryMB && r.CPUs <= other.CPUs+roomSlack
}

// Share is the part of a capacity that r takes: that of memory or of cores, whichever is larger. Of nothing it is 1.
func (r Capacity) Share(capacity Capacity) float64 {
	if capacity.MemoryMB <= 0 || capacity.CPUs <= 0 {
		return 1
	}
	return max(float64(r.MemoryMB)/float64(capacity.MemoryMB), r.CPUs/capacity.CPUs)
}
