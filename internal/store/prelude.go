package store

import (
	"regexp"
	"slices"
	"strings"
)

// prelude is the Lua code that scripts share, in paragraphs, each of which defines names. Redis runs a script from its first line with every
// call, so a script gets only the paragraphs that it uses.
type prelude []paragraph

type paragraph struct {
	text  string
	names []string // that it defines
	words []string // of its code
}

var (
	definition = regexp.MustCompile(`(?m)^local (?:function )?([A-Za-z_, ]+)`)
	comment    = regexp.MustCompile(`(?m)--.*$`)
)

// newPrelude makes a prelude of pieces of code. Blank lines end paragraphs, so there are none inside functions. Only what begins a line after
// "local" is a name that others may use.
func newPrelude(pieces ...string) prelude {
	var p prelude
	for text := range strings.SplitSeq(strings.Join(pieces, "\n"), "\n\n") {
		code := comment.ReplaceAllString(text, "")
		var names []string
		for _, found := range definition.FindAllStringSubmatch(code, -1) {
			for name := range strings.SplitSeq(found[1], ",") {
				names = append(names, strings.TrimSpace(name))
			}
		}
		if len(names) > 0 {
			p = append(p, paragraph{text, names, words(code)})
		}
	}
	return p
}

// words are the names, numbers and keywords of code without comments.
func words(code string) []string {
	return strings.FieldsFunc(code, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}

// of is what a script needs before it, in the order of the prelude.
func (p prelude) of(script string) string {
	used := map[string]bool{}
	use := func(words []string) {
		for _, word := range words {
			used[word] = true
		}
	}
	use(words(comment.ReplaceAllString(script, "")))
	var needed []string
	for _, part := range slices.Backward(p) { // a paragraph uses only those before it
		if slices.ContainsFunc(part.names, func(name string) bool { return used[name] }) {
			use(part.words)
			needed = append(needed, part.text)
		}
	}
	slices.Reverse(needed)
	return strings.Join(needed, "\n") + "\n"
}
