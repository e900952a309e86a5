package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// check checks a value against the tags oneof, min and max.
func (f field) check() error {
	if allowed := f.oneOf(); len(allowed) > 0 {
		for _, got := range f.strings() {
			if !slices.Contains(allowed, got) {
				return fmt.Errorf("is not allowed; allowed: %s", strings.Join(allowed, ", "))
			}
		}
	}
	low, high := f.bound("min"), f.bound("max")
	if f.kind != kindScalar || low == "" && high == "" {
		return nil
	}
	for _, side := range []struct {
		text string
		sign int
	}{{low, -1}, {high, 1}} {
		if side.text == "" {
			continue
		}
		limit := reflect.New(f.value.Type()).Elem()
		if err := parse(limit, side.text); err != nil {
			return fmt.Errorf("has a bound in the program that %w", err)
		}
		if compare(f.value, limit) == side.sign {
			return fmt.Errorf("is out of range; allowed: %s", rangeText(low, high))
		}
	}
	return nil
}

func (f field) strings() []string {
	switch {
	case f.kind == kindScalar && f.value.Kind() == reflect.String:
		return []string{f.value.String()}
	case f.kind == kindList && f.value.Type().Elem().Kind() == reflect.String:
		out := make([]string, f.value.Len())
		for i := range out {
			out[i] = f.value.Index(i).String()
		}
		return out
	default:
		return nil
	}
}

func compare(a, b reflect.Value) int {
	switch {
	case a.CanInt():
		return cmp.Compare(a.Int(), b.Int())
	case a.CanUint():
		return cmp.Compare(a.Uint(), b.Uint())
	case a.CanFloat():
		return cmp.Compare(a.Float(), b.Float())
	default:
		return 0
	}
}

func rangeText(low, high string) string {
	switch {
	case low == "":
		return "at most " + high
	case high == "":
		return "at least " + low
	default:
		return low + " to " + high
	}
}
