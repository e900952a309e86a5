package kernel

import "github.com/sandfarm/sandfarm/internal/agent"

// maxNamedValues bounds the displayed values of one execution whose names are remembered: the newest.
const maxNamedValues = 10_000

// values numbers the displayed values of one execution. The zero value has none.
type values struct {
	count int
	named map[string]int // numbers by name
	names []string       // in the order in which they came, from oldest on
	first int            // index of the oldest name, once there are maxNamedValues
}

// number returns the number of a value, from 1, and the name under which it is known. An update of a value that this execution has
// displayed has that value's number; everything else is a new value. A name that is too long is left out.
func (v *values) number(id string, update bool) (number int, name string) {
	if len(id) > agent.MaxDisplayID {
		id = ""
	}
	if n, ok := v.named[id]; ok && update {
		return n, id
	}
	v.count++
	v.remember(id)
	return v.count, id
}

// remember gives the newest value a name, in place of the oldest name if there are too many.
func (v *values) remember(id string) {
	if id == "" {
		return
	}
	if v.named == nil {
		v.named = map[string]int{}
	}
	if _, known := v.named[id]; !known {
		if len(v.names) < maxNamedValues {
			v.names = append(v.names, id)
		} else {
			delete(v.named, v.names[v.first])
			v.names[v.first] = id
			v.first = (v.first + 1) % maxNamedValues
		}
	}
	v.named[id] = v.count
}
