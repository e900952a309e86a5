package farm

import "math"

// Capacity is an amount of memory and cores: what a node has for sandboxes, or what is reserved of it.
type Capacity struct {
	MemoryMB int     `json:"memory_mb"` // MiB
	CPUs     float64 `json:"cpus"`      // cores
}

// Capacity is what must be reserved for a sandbox with these resources.
func (r Resources) Capacity() Capacity { return Capacity{MemoryMB: r.MemoryMB, CPUs: r.CPUs} }

// Millicores are the cores in thousandths, as records count them.
func (r Capacity) Millicores() int { return int(math.Round(r.CPUs * 1000)) }

// Plus is the sum.
func (r Capacity) Plus(other Capacity) Capacity {
	return Capacity{MemoryMB: r.MemoryMB + other.MemoryMB, CPUs: r.CPUs + other.CPUs}
}

// Minus is r without other, never below zero.
func (r Capacity) Minus(other Capacity) Capacity {
	return Capacity{MemoryMB: max(r.MemoryMB-other.MemoryMB, 0), CPUs: max(r.CPUs-other.CPUs, 0)}
}

// coresSlack absorbs rounding: cores are counted in thousandths.
const coresSlack = 0.0005

// Within reports whether r fits into other.
func (r Capacity) Within(other Capacity) bool {
	return r.MemoryMB <= other.MemoryMB && r.CPUs <= other.CPUs+coresSlack
}

// Share is the part of a capacity that r takes, of memory or of cores, whichever is larger. It is 1 of an empty capacity.
func (r Capacity) Share(capacity Capacity) float64 {
	if capacity.MemoryMB <= 0 || capacity.CPUs <= 0 {
		return 1
	}
	return max(float64(r.MemoryMB)/float64(capacity.MemoryMB), r.CPUs/capacity.CPUs)
}
