package verbs

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// pairs parses NAME=VALUE arguments of a flag. A name alone gets its value from lookup; without that they are those of labels, KEY=VALUE.
func pairs(what string, args []string, lookup func(string) string) (map[string]string, error) {
	if len(args) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(args))
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if name == "" || !ok && (lookup == nil || strings.ContainsAny(name, ": ")) {
			form := "NAME=VALUE"
			if lookup == nil {
				form = "KEY=VALUE"
			}
			return nil, usagef("%s %q does not have the form %s", what, arg, form)
		}
		if !ok {
			if value = lookup(name); value == "" {
				return nil, usagef("%s %s: the variable %s has no value here; give it one with %s=VALUE", what, name, name, name)
			}
		}
		out[name] = value
	}
	return out, nil
}

// seconds parses a duration: "90", "90s", "5m", "2h", "1d".
func seconds(flag, text string) (*int, error) {
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		var d time.Duration
		if days, ok := strings.CutSuffix(text, "d"); ok {
			var whole float64
			whole, err = strconv.ParseFloat(days, 64)
			d = time.Duration(whole * 24 * float64(time.Hour))
		} else {
			d, err = time.ParseDuration(text)
		}
		n = d.Seconds()
	}
	if err != nil || math.IsNaN(n) || n < 0 || n > math.MaxInt32 {
		return nil, usagef("--%s %q is not a duration like 90s, 5m, 2h or 30d", flag, text)
	}
	return new(int(math.Ceil(n))), nil
}

// life parses how long something lives. A number without a unit is one of seconds, which is said of those up to most: there another unit, such as
// minute, may be meant.
func (a *app) life(flag, text, unit string, most int) (*int, error) {
	n, err := seconds(flag, text)
	if _, bare := strconv.Atoi(text); bare == nil && n != nil && *n > 0 && *n <= most {
		fmt.Fprintf(a.Err, "sandfarm: --%s %s is %s; --%s %s%s is %s\n", flag, text, farm.Plural(*n, "second"), flag, text, unit[:1], farm.Plural(*n, unit))
	}
	return n, err
}

// megabytes parses an amount in MiB: "512", "512m", "2g".
func megabytes(flag, text string) (*int, error) {
	if text == "" {
		return nil, nil
	}
	lower := strings.ToLower(text)
	for _, suffix := range []string{"ib", "b"} {
		lower = strings.TrimSuffix(lower, suffix)
	}
	unit := 1.0
	if rest, ok := strings.CutSuffix(lower, "g"); ok {
		lower, unit = rest, 1024
	} else {
		lower = strings.TrimSuffix(lower, "m")
	}
	n, err := strconv.ParseFloat(lower, 64)
	if err != nil || math.IsNaN(n) || n < 0 || n*unit > math.MaxInt32 {
		return nil, usagef("--%s %q is not an amount like 512m or 2g", flag, text)
	}
	return new(int(math.Ceil(n * unit))), nil
}

// quote quotes each argument as one shell word and joins them.
func quote(argv []string) string {
	words := make([]string, len(argv))
	for i, arg := range argv {
		words[i] = quoteOne(arg)
	}
	return strings.Join(words, " ")
}

func quoteOne(arg string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,@%+", r)
	}
	if arg != "" && strings.IndexFunc(arg, func(r rune) bool { return !plain(r) }) < 0 {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

// optional is a pointer to s, nil for the empty string: a value that was not given is not sent.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
