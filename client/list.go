package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sandfarm/sandfarm/api/wire"
)

// pageSize is the largest page that the farm allows.
const pageSize = 200

// cursors are those of a list that were followed.
type cursors map[string]bool

// end reports whether a list ends before next: there is none, or it was followed before and would lead around.
func (c cursors) end(next string) bool {
	again := c[next]
	c[next] = true
	return next == "" || again
}

// listPaged lists all items, page by page. An error ends it.
func listPaged[T any](ctx context.Context, c *Client, path []string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		asked := url.Values{"limit": {strconv.Itoa(pageSize)}}
		for name, values := range query {
			asked[name] = values
		}
		at := cursors{}
		for {
			var got wire.List[T]
			if err := c.json(ctx, call{method: http.MethodGet, path: path, query: asked}, &got); err != nil {
				yield(zero, err)
				return
			}
			for _, item := range got.Items {
				if !yield(item, nil) {
					return
				}
			}
			next := string(got.NextCursor)
			if at.end(next) {
				return
			}
			asked.Set("cursor", next)
		}
	}
}

// listWhole reads a list without pages.
func listWhole[T any](ctx context.Context, c *Client, path ...string) ([]T, error) {
	var got wire.Items[T]
	err := c.json(ctx, call{method: http.MethodGet, path: path}, &got)
	return got.Items, err
}
