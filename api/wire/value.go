package wire

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strings"
)

// Value is one displayed value: an entry for each of its MIME types, in the order in which they came.
type Value []Rich

// Values groups entries by the number of the displayed value that they belong to, in the order of these numbers. If a value
// was updated in place, only the last entry of each MIME type is kept.
func Values(entries []Rich) []Value {
	byNumber := map[int]Value{}
	var numbers []int
	for _, e := range entries {
		v, seen := byNumber[e.Display]
		if !seen {
			numbers = append(numbers, e.Display)
		}
		if at := slices.IndexFunc(v, func(old Rich) bool { return old.Mime == e.Mime }); at >= 0 {
			v[at] = e
		} else {
			v = append(v, e)
		}
		byNumber[e.Display] = v
	}
	slices.SortFunc(numbers, cmp.Compare[int])
	values := make([]Value, len(numbers))
	for i, n := range numbers {
		values[i] = byNumber[n]
	}
	return values
}

// Number is the number of the value, from 0.
func (v Value) Number() int {
	if len(v) == 0 {
		return 0
	}
	return v[0].Display
}

// First gives the entry of the first of the MIME types that the value has.
func (v Value) First(mimes ...string) (Rich, bool) {
	for _, mime := range mimes {
		if at := slices.IndexFunc(v, func(r Rich) bool { return r.Mime == mime }); at >= 0 {
			return v[at], true
		}
	}
	return Rich{}, false
}

// Text is the data of an entry whose MIME type is text, such as text/html, application/json or image/svg+xml. It is false for
// any other type, and for a value that is behind a link.
func (r Rich) Text() (string, bool) {
	switch {
	case r.Data == "":
		return "", false
	case strings.HasPrefix(r.Mime, "text/"):
		return r.Data, true
	case !IsMarkup(r.Mime):
		return "", false
	}
	raw, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		return r.Data, true // of a farm that sends such types as they are
	}
	return string(raw), true
}

// IsMarkup reports whether a MIME type outside text/* is text all the same: JSON, XML and JavaScript.
func IsMarkup(mime string) bool {
	return IsJSON(mime) || strings.HasSuffix(mime, "+xml") || mime == "application/javascript" || mime == "application/xml"
}

// IsJSON reports whether a MIME type is JSON.
func IsJSON(mime string) bool { return mime == "application/json" || strings.HasSuffix(mime, "+json") }
