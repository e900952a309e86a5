package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// parse sets v, a scalar, from text. The error names the allowed values, as the end of a sentence "… is not ".
func parse(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("is not allowed: %w", err)
		}
		return nil
	}
	if v.Type() == durationType {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf(`is not a duration; allowed: a number with its unit, as "500ms", "30s", "5m" or "24h"`)
		}
		v.SetInt(int64(d))
		return nil
	}
	switch {
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("is not a switch; allowed: true or false")
		}
		v.SetBool(b)
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("is not %s", wholeNumber(v.Type()))
		}
		v.SetInt(n)
	case v.CanUint():
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("is not %s", wholeNumber(v.Type()))
		}
		v.SetUint(n)
	default:
		n, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil || n-n != 0 { // infinities and NaN are not allowed
			return fmt.Errorf("is not a number; allowed: as 4 or 0.5")
		}
		v.SetFloat(n)
	}
	return nil
}

// wholeNumber describes the numbers of a type; the bounds of 64 bits are left out.
func wholeNumber(t reflect.Type) string {
	unsigned := t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64
	switch {
	case t.Bits() == 64 && unsigned:
		return "a whole number; allowed: 0 and above, as 42"
	case t.Bits() == 64:
		return "a whole number; allowed: as 42"
	case unsigned:
		return fmt.Sprintf("a whole number; allowed: 0 to %d", ^uint64(0)>>(64-t.Bits()))
	default:
		low := int64(-1) << (t.Bits() - 1)
		return fmt.Sprintf("a whole number; allowed: %d to %d", low, -(low + 1))
	}
}

// parseText sets any setting that a string can express: scalars, lists and maps.
func (f field) parseText(text string) error {
	switch f.kind {
	case kindList:
		parts := splitList(text)
		list := reflect.MakeSlice(f.value.Type(), len(parts), len(parts))
		for i, part := range parts {
			switch err := parse(list.Index(i), part); {
			case err != nil && f.secret():
				return fmt.Errorf("has entry %d, which %w", i+1, err)
			case err != nil:
				return fmt.Errorf("has %q in it, which %w", part, err)
			}
		}
		f.value.Set(list)
	case kindMap:
		m := reflect.MakeMap(f.value.Type())
		for _, part := range splitList(text) {
			key, value, ok := strings.Cut(part, "=")
			if !ok || strings.TrimSpace(key) == "" {
				return fmt.Errorf(`has %q in it, which is not a pair; allowed: "name=value,name=value"`, part)
			}
			m.SetMapIndex(
				reflect.ValueOf(strings.TrimSpace(key)).Convert(f.value.Type().Key()),
				reflect.ValueOf(strings.TrimSpace(value)).Convert(f.value.Type().Elem()))
		}
		f.value.Set(m)
	default:
		return parse(f.value, text)
	}
	return nil
}

func splitList(text string) []string {
	var parts []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// def is the default of a setting as written in the environment: that of its tag, or else the field's current value;
// empty if there is none, and for secrets.
func (f field) def() string {
	if text, ok := f.tag.Lookup("default"); ok || f.secret() || f.value.IsZero() {
		return text
	}
	var parts []string
	switch f.kind {
	case kindScalar:
		return format(f.value)
	case kindList:
		for i := range f.value.Len() {
			parts = append(parts, format(f.value.Index(i)))
		}
	case kindMap:
		for _, key := range f.value.MapKeys() {
			parts = append(parts, key.String()+"="+f.value.MapIndex(key).String())
		}
		slices.Sort(parts)
	}
	return strings.Join(parts, ",")
}

// format is the inverse of parse.
func format(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if text, err := m.MarshalText(); err == nil {
			return string(text)
		}
	}
	switch {
	case v.Type() == durationType:
		return shortDuration(time.Duration(v.Int()))
	case v.CanFloat():
		return strconv.FormatFloat(v.Float(), 'g', -1, v.Type().Bits())
	default:
		return fmt.Sprint(v.Interface())
	}
}

// shortDuration is d without the zero parts of its String: "24h", not "24h0m0s".
func shortDuration(d time.Duration) string {
	text := d.String()
	if d%time.Minute == 0 && d != 0 {
		text = strings.TrimSuffix(text, "0s")
	}
	if d%time.Hour == 0 && d != 0 {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
