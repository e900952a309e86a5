package kernel

const (
	// maxNamedValues bounds the displayed values of one execution whose names are remembered.
	maxNamedValues = 10_000
	// maxValueName bounds such a name. IPython's have 32 bytes.
	maxValueName = 256
)

// values numbers the displayed values of one execution. The zero value has none.
type values struct {
	count int
	named map[string]int // numbers by display_id
}

// number returns the number of a value, from 1. An update of a value that this execution has displayed has that value's number;
// everything else is a new value.
func (v *values) number(id string, update bool) int {
	if n, ok := v.named[id]; ok && update {
		return n
	}
	v.count++
	if id != "" && len(id) <= maxValueName && len(v.named) < maxNamedValues {
		if v.named == nil {
			v.named = map[string]int{}
		}
		v.named[id] = v.count
	}
	return v.count
}
