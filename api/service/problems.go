package service

import (
	"errors"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// problems collects the problems of a request's body, so that all are reported at once. Pointers are those of RFC 6901; ""
// is for problems that do not belong to a single field.
type problems struct {
	decoded []farm.FieldError // found by the decoder
	found   []farm.FieldError // the first strict.MaxProblems
	invalid bool              // one of those found, kept or not, is not farm.CodeTooLarge
	other   error             // an error that is not about the body; the first one
}

// problems starts with the problems that the decoder found.
func (c Call) problems() *problems { return &problems{decoded: c.Problems} }

// check adds the error of a check; nil is none.
func (p *problems) check(pointer string, err error) {
	if err == nil {
		return
	}
	e, ok := errors.AsType[*farm.Error](err)
	if !ok || e.Code != farm.CodeInvalid && e.Code != farm.CodeTooLarge {
		if p.other == nil {
			p.other = err
		}
		return
	}
	if p.unread(pointer) {
		return
	}
	p.invalid = p.invalid || e.Code == farm.CodeInvalid
	if !p.full() {
		p.found = append(p.found, farm.FieldError{Pointer: pointer, Detail: e.Message})
	}
}

// addf adds a problem of a field.
func (p *problems) addf(pointer, format string, args ...any) {
	p.check(pointer, farm.Invalidf(format, args...))
}

// unread reports whether the decoder could not read a field: its value is not the caller's then.
func (p *problems) unread(pointer string) bool {
	return slices.ContainsFunc(p.decoded, func(d farm.FieldError) bool {
		return pointer == "" || pointer == d.Pointer || strings.HasPrefix(pointer, d.Pointer+"/")
	})
}

// full reports whether no more problems are kept.
func (p *problems) full() bool { return len(p.found) >= strict.MaxProblems }

// of reports whether one of these fields, or a field inside them, has a problem, or may have one that was not kept.
func (p *problems) of(pointers ...string) bool {
	return p.full() || slices.ContainsFunc(slices.Concat(p.decoded, p.found), func(f farm.FieldError) bool {
		return slices.ContainsFunc(pointers, func(pointer string) bool {
			return f.Pointer == pointer || strings.HasPrefix(f.Pointer, pointer+"/")
		})
	})
}

// err is the error for a body with problems; nil if there are none.
func (p *problems) err() error {
	all := slices.Concat(p.decoded, p.found)
	all = all[:min(len(all), strict.MaxProblems)]
	switch {
	case len(p.decoded) > 0:
		return &strict.Error{Fields: all}
	case len(all) > 0 && !p.invalid:
		return farm.FieldsError(farm.CodeTooLarge, all)
	case len(all) > 0:
		return farm.FieldsError(farm.CodeInvalid, all)
	default:
		return p.other
	}
}
