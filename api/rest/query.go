package rest

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/store"
)

// Page sizes of lists.
const (
	PageDefault = 50
	PageMax     = 200
)

// Wait reads ?wait=, or else Prefer: wait=; standard is the default. A wait over longest counts as longest.
func Wait(c *gin.Context, standard, longest time.Duration) (time.Duration, error) {
	if text, ok := c.GetQuery("wait"); ok {
		return seconds(text, longest)
	}
	for _, header := range c.Request.Header.Values("Prefer") {
		for _, part := range strings.FieldsFunc(header, func(r rune) bool { return r == ',' || r == ';' }) {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			wait, err := seconds(strings.Trim(strings.TrimSpace(value), `"`), longest)
			if err == nil {
				c.Header("Preference-Applied", "wait="+strconv.FormatFloat(wait.Seconds(), 'f', -1, 64))
			}
			return wait, err
		}
	}
	return standard, nil
}

func seconds(text string, longest time.Duration) (time.Duration, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || math.IsInf(n, 0) && err == nil || math.IsNaN(n) || n < 0 {
		return 0, BadRequestf("wait must be a number of seconds from 0 to %g", longest.Seconds())
	}
	return time.Duration(min(n, longest.Seconds()) * float64(time.Second)), nil
}

// Page reads limit and cursor.
func Page(c *gin.Context) (store.Page, error) {
	p := store.Page{Cursor: c.Query("cursor")}
	var err error
	if p.Limit, err = Limit(c, PageDefault, PageMax); err != nil {
		return p, err
	}
	if !utf8.ValidString(p.Cursor) || len(p.Cursor) > 200 || strings.ContainsFunc(p.Cursor, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return p, BadRequestf("cursor is not valid: send next_cursor of a page")
	}
	return p, nil
}

// PageOf reads what all lists of records have: limit and cursor, and created_after and created_before.
func PageOf(c *gin.Context) (p store.Page, created store.TimeRange, err error) {
	if p, err = Page(c); err == nil {
		created, err = timeRange(c)
	}
	return p, created, err
}

// List reads a query parameter with several values, separated by commas or given repeatedly.
func List(c *gin.Context, name string) []string {
	var out []string
	for _, values := range c.QueryArray(name) {
		for value := range strings.SplitSeq(values, ",") {
			if value != "" {
				out = append(out, value)
			}
		}
	}
	return out
}

// timeRange reads created_after and created_before, times by RFC 3339.
func timeRange(c *gin.Context) (store.TimeRange, error) {
	var r store.TimeRange
	for name, into := range map[string]*time.Time{"created_after": &r.After, "created_before": &r.Before} {
		text, ok := c.GetQuery(name)
		if !ok {
			continue
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return r, BadRequestf("%s must be a time such as 2026-11-22T08:00:00Z", name)
		}
		*into = t
	}
	return r, nil
}

// Limit reads ?limit=, the size of a page.
func Limit(c *gin.Context, standard, limit int) (int, error) {
	text, ok := c.GetQuery("limit")
	if !ok {
		return standard, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > limit {
		return 0, BadRequestf("limit must be a whole number from 1 to %d", limit)
	}
	return n, nil
}

// Labels reads label=key=value, which may be repeated.
func Labels(c *gin.Context) (map[string]string, error) {
	given := c.QueryArray("label")
	out := make(map[string]string, len(given))
	for _, text := range given {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, BadRequestf("label must be key=value")
		}
		if before, twice := out[key]; twice && before != value {
			return nil, BadRequestf("label %s is given twice with different values", strconv.QuoteToASCII(key))
		}
		out[key] = value
	}
	return out, nil
}

// Flag reads a query parameter that is true or false.
func Flag(c *gin.Context, name string) (bool, error) {
	switch text := strings.ToLower(c.Query(name)); text {
	case "", "false", "0", "no":
		return false, nil
	case "true", "1", "yes":
		return true, nil
	default:
		return false, BadRequestf("%s must be true or false", name)
	}
}
