package e2b

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// The states of sandboxes that the SDKs know.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// listMax is how many sandboxes one page has at most, and by default.
const listMax = 100

// headerNext has what leads to the next page; a last page has none.
const headerNext = "X-Next-Token"

// List lists the sandboxes of the tenant that have not ended. A page says that there is a next one only if that has something, or if more
// records were looked at than one call looks at.
func (d *Door) List(c *gin.Context) error {
	q, template, err := listQuery(c)
	if err != nil {
		return err
	}
	read := func() ([]shownSandbox, error) {
		list, err := d.Service.Sandboxes(c.Request.Context(), rest.Tenant(c), q)
		q.Page.Cursor = string(list.NextCursor)
		shown := []shownSandbox{}
		for _, s := range list.Items {
			if template == "" || s.Image == template {
				shown = append(shown, d.show(c, s))
			}
		}
		return shown, err
	}
	out, err := read()
	for err == nil && len(out) == 0 && q.Page.Cursor != "" {
		out, err = read()
	}
	if err == nil && q.Page.Cursor != "" {
		c.Header(headerNext, q.Page.Cursor)
		q.Page.Limit = 1
		var next []shownSandbox
		if next, err = read(); len(next) == 0 && q.Page.Cursor == "" {
			c.Writer.Header().Del(headerNext)
		}
	}
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, out)
}

// listQuery reads the query of a list.
func listQuery(c *gin.Context) (q service.SandboxQuery, template string, err error) {
	if q.Labels, err = metadata(c.Query("metadata")); err != nil {
		return q, "", err
	}
	if q.States, err = states(rest.List(c, "state")); err != nil {
		return q, "", err
	}
	if after := c.Query("startedAfter"); after != "" {
		if q.Created.After, err = time.Parse(time.RFC3339Nano, after); err != nil {
			return q, "", rest.BadRequestf("startedAfter is not a time (RFC 3339).")
		}
	}
	order := c.Query("order")
	if order != "" && order != "desc" && order != "asc" {
		return q, "", rest.BadRequestf("order is %q; it is asc, from the oldest, or desc.", farm.Shorten(order))
	}
	limit, err := rest.Limit(c, listMax, listMax)
	if err != nil {
		return q, "", err
	}
	q.Page = store.Page{Limit: limit, Cursor: c.Query("nextToken"), Oldest: order == "asc"}
	if template = c.Query("template"); slices.Contains(images, template) {
		template = defaultImage
	}
	return q, template, nil
}

// states are those of the farm that states of E2B stand for.
func states(given []string) ([]string, error) {
	if len(given) == 0 {
		given = []string{stateRunning, statePaused}
	}
	var out []string
	for _, state := range given {
		switch state {
		case stateRunning:
			for _, s := range farm.SandboxStates() {
				if s.Accepts() && s != farm.SandboxHibernated {
					out = append(out, string(s))
				}
			}
		case statePaused:
			out = append(out, string(farm.SandboxHibernated))
		default:
			return nil, rest.BadRequestf("state %q is not known: it is running or paused.", farm.Shorten(state))
		}
	}
	return out, nil
}

// metadata reads a filter. Keys and values are escaped once, the pairs once more, and the query escapes the whole.
func metadata(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil // no filter is not an error
	}
	out := map[string]string{}
	for pair := range strings.SplitSeq(text, "&") {
		key, value, ok := strings.Cut(pair, "=")
		for _, part := range []*string{&key, &value} {
			for range 2 {
				plain, err := url.QueryUnescape(*part)
				if err != nil {
					ok = false
					break
				}
				*part = plain
			}
		}
		if !ok || key == "" {
			return nil, rest.BadRequestf("metadata is not a list of key=value, escaped as the SDKs do.")
		}
		out[key] = value
	}
	return out, nil
}

// defaultImage is the image of a create that names none, as service.Service has it.
const defaultImage = "python"
