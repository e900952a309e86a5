package verbs

import (
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sandfarm/sandfarm/api/wire"
)

// collect reads a whole list. On an error it returns no items.
func collect[T any](items iter.Seq2[T, error]) ([]T, error) {
	all := []T{}
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		all = append(all, item)
	}
	return all, nil
}

// upTo limits a list, so that no more pages are read than needed.
func upTo[T any](items iter.Seq2[T, error], limit int) iter.Seq2[T, error] {
	if limit <= 0 {
		return items
	}
	return func(yield func(T, error) bool) {
		n := 0
		for item, err := range items {
			n++
			if !yield(item, err) || n == limit {
				return
			}
		}
	}
}

// listed prints the first items of a list as a table or, with --json, in the JSON form of the farm; limit 0 prints all. If there are more,
// it says so on stderr, with the option that shows them.
func listed[T any](a *app, items iter.Seq2[T, error], limit int, head []string, row func(T) []string) error {
	found, err := collect(upTo(items, limit+min(limit, 1))) // one more shows whether there are more
	if err != nil {
		return err
	}
	more := limit > 0 && len(found) > limit
	if more {
		found = found[:limit]
	}
	if a.json {
		err = a.list(found, nil)
	} else {
		rows := make([][]string, len(found))
		for i, item := range found {
			rows[i] = row(item)
		}
		err = table(a.Out, head, rows)
	}
	if err == nil && more {
		a.sayMore(limit)
	}
	return err
}

// sayMore says that a list has more items than were printed.
func (a *app) sayMore(limit int) {
	fmt.Fprintf(a.Err, "sandfarm: the list has more than %d; --limit 0 shows all\n", limit)
}

// list prints a whole list in the JSON form of the farm.
func (a *app) list(items any, err error) error {
	if err != nil {
		return err
	}
	return a.print(wholeList{Items: items})
}

type wholeList struct {
	Items      any         `json:"items"`
	NextCursor wire.Cursor `json:"next_cursor"`
}

// facts prints names and values, one pair on each line, without empty values.
func facts(w io.Writer, pairs [][2]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, pair := range pairs {
		if pair[1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", pair[0], cell(pair[1]))
		}
	}
	return t.Flush()
}

func labelText(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, key+"="+labels[key])
	}
	return strings.Join(parts, ", ")
}
