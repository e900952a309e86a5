package api

import (
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Pages of lists.
const (
	pageDefault = 50
	pageMax     = 200
)

// wait reads ?wait=, or else Prefer: wait=. More than the farm's maximum counts as that.
func (s *Server) wait(c *gin.Context, standard time.Duration) (time.Duration, error) {
	if text, ok := c.GetQuery("wait"); ok {
		return s.seconds(text)
	}
	for _, header := range c.Request.Header.Values("Prefer") {
		for _, part := range strings.FieldsFunc(header, func(r rune) bool { return r == ',' || r == ';' }) {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			wait, err := s.seconds(strings.Trim(strings.TrimSpace(value), `"`))
			if err == nil {
				c.Header("Preference-Applied", "wait="+strconv.FormatFloat(wait.Seconds(), 'f', -1, 64))
			}
			return wait, err
		}
	}
	return standard, nil
}

func (s *Server) seconds(text string) (time.Duration, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil && !strings.Contains(err.Error(), "range") || math.IsNaN(n) || n < 0 {
		return 0, badf("wait must be a number of seconds from 0 to %d", s.cfg.Limits.WaitMaxSeconds)
	}
	return time.Duration(min(n, float64(s.cfg.Limits.WaitMaxSeconds)) * float64(time.Second)), nil
}

// call reads what a request that starts work says about itself.
func (s *Server) call(c *gin.Context, standard time.Duration, body []byte) (service.Call, error) {
	wait, err := s.wait(c, standard)
	if err != nil {
		return service.Call{}, err
	}
	call := service.Call{Tenant: tenant(c), Wait: wait, Body: body, Route: c.Request.Method + " " + c.Request.URL.EscapedPath()}
	if keys, ok := c.Request.Header["Idempotency-Key"]; ok {
		if call.Key = keys[0]; call.Key == "" || len(keys) > 1 {
			return call, badf("the Idempotency-Key must be given once and not be empty")
		}
	}
	if path, ok := c.GetQuery("path"); ok {
		call.Route += "?path=" + url.QueryEscape(path)
	}
	return call, nil
}

// page reads limit and cursor.
func page(c *gin.Context) (store.Page, error) {
	p := store.Page{Limit: pageDefault, Cursor: c.Query("cursor")}
	if text, ok := c.GetQuery("limit"); ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > pageMax {
			return p, badf("limit must be a whole number from 1 to %d", pageMax)
		}
		p.Limit = n
	}
	if !utf8.ValidString(p.Cursor) || len(p.Cursor) > 200 || strings.ContainsFunc(p.Cursor, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return p, badf("cursor is not one that a list gave")
	}
	return p, nil
}

// labels reads label=key=value, which may be repeated.
func labels(c *gin.Context) (map[string]string, error) {
	given := c.QueryArray("label")
	out := make(map[string]string, len(given))
	for _, text := range given {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, badf("label must be key=value")
		}
		if before, twice := out[key]; twice && before != value {
			return nil, badf("label %s is given twice with different values", strconv.QuoteToASCII(key))
		}
		out[key] = value
	}
	return out, nil
}

// flag reads a query parameter that is true or false.
func flag(c *gin.Context, name string) (bool, error) {
	switch text := strings.ToLower(c.Query(name)); text {
	case "", "false", "0", "no":
		return false, nil
	case "true", "1", "yes":
		return true, nil
	default:
		return false, badf("%s must be true or false", name)
	}
}

// filePath is the path of a file as it was sent, behind …/files/: decoded here, once, since a name may hold anything.
func filePath(c *gin.Context) (string, error) {
	path, ok, err := behind(c, "/files/")
	if err == nil && !ok {
		err = farm.Invalidf("path is empty: name a file in the workspace")
	}
	return path, err
}

// behind gives what stands behind a part of the request's path, decoded. ok is false where nothing does.
func behind(c *gin.Context, part string) (rest string, ok bool, err error) {
	_, escaped, ok := strings.Cut(c.Request.URL.EscapedPath(), part)
	if rest, err = url.PathUnescape(escaped); err != nil {
		return "", ok, badf("the path is not well escaped")
	}
	return rest, ok, nil
}

// byteRange is the part of a file that a Range header asks for.
type byteRange struct{ first, last int64 } // last -1: to the end; first -1: the last `last` bytes

// parseRange reads a Range header of one part. Other forms count as no Range, as RFC 9110 allows.
func parseRange(header string) (byteRange, bool) {
	unit, set, ok := strings.Cut(header, "=")
	if !ok || !strings.EqualFold(strings.TrimSpace(unit), "bytes") {
		return byteRange{}, false
	}
	from, to, ok := strings.Cut(strings.TrimSpace(set), "-")
	first, errFirst := strconv.ParseUint(from, 10, 63)
	last, errLast := strconv.ParseUint(to, 10, 63)
	switch {
	case !ok:
		return byteRange{}, false
	case from == "" && errLast == nil:
		return byteRange{first: -1, last: int64(last)}, true
	case errFirst != nil || to != "" && (errLast != nil || last < first):
		return byteRange{}, false
	case to == "":
		return byteRange{first: int64(first), last: -1}, true
	default:
		return byteRange{first: int64(first), last: int64(last)}, true
	}
}

// within gives the range in a file of a size; false: it holds no byte of the file.
func (r byteRange) within(size int64) (service.Range, bool) {
	switch {
	case r.first == -1:
		if n := min(r.last, size); n > 0 {
			return service.Range{Offset: size - n, Length: n}, true
		}
		return service.Range{}, false
	case r.first >= size:
		return service.Range{}, false
	case r.last == -1 || r.last >= size:
		return service.Range{Offset: r.first, Length: size - r.first}, true
	default:
		return service.Range{Offset: r.first, Length: r.last - r.first + 1}, true
	}
}
