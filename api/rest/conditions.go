package rest

import (
	"errors"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// gzipMark ends the etag of a compressed answer, whose bytes are others.
const gzipMark = "-gzip"

var errNotModified = errors.New("not modified")

// IsNotModified reports whether the caller has the version already.
func IsNotModified(err error) bool { return errors.Is(err, errNotModified) }

// etags reads a header of conditions: the etags without quotes, or "*".
func etags(c *gin.Context, name string) (tags []string, err error) {
	for _, header := range c.Request.Header.Values(name) {
		for part := range strings.SplitSeq(header, ",") {
			part = strings.TrimPrefix(strings.TrimSpace(part), "W/")
			if part == "*" {
				tags = append(tags, part)
				continue
			}
			inner, ok := strings.CutPrefix(part, `"`)
			if ok {
				inner, ok = strings.CutSuffix(inner, `"`)
			}
			if !ok || inner == "" || strings.Contains(inner, `"`) {
				return nil, BadRequestf("%s must be * or etags in double quotes", name)
			}
			tags = append(tags, strings.TrimSuffix(inner, gzipMark))
		}
	}
	return tags, nil
}

// ReadConditions compares the version of a file with the request's If-Match and If-None-Match. An error for which IsNotModified is true means 304.
func ReadConditions(c *gin.Context, etag string) error {
	match, err := etags(c, "If-Match")
	if err != nil {
		return err
	}
	if match != nil && !hasTag(match, etag) {
		return Refusef(http.StatusPreconditionFailed, farm.CodeConflict, "The file is not the version that If-Match names.")
	}
	none, err := etags(c, "If-None-Match")
	if err != nil {
		return err
	}
	if none != nil && hasTag(none, etag) {
		return errNotModified
	}
	return nil
}

func hasTag(tags []string, etag string) bool {
	for _, tag := range tags {
		if tag == "*" || tag == etag {
			return true
		}
	}
	return false
}

// WriteConditions reads the conditions of a write: one etag, or *, in each header; "" where there is none.
func WriteConditions(c *gin.Context) (match, noMatch string, err error) {
	for name, into := range map[string]*string{"If-Match": &match, "If-None-Match": &noMatch} {
		tags, err := etags(c, name)
		if err != nil {
			return "", "", err
		}
		if len(tags) > 1 {
			return "", "", BadRequestf("%s must have one etag in a request that writes", name)
		}
		if len(tags) == 1 {
			*into = tags[0]
		}
	}
	return match, noMatch, nil
}

// NoConditions refuses the conditions of a request that would not keep them.
func NoConditions(c *gin.Context) error {
	for _, name := range []string{"If-Match", "If-None-Match", "If-Unmodified-Since"} {
		if c.Request.Header.Values(name) != nil {
			return BadRequestf("%s is not supported here: only the content of a file below /fs/ is written on a condition", name)
		}
	}
	return nil
}

// AsUnmet makes an error of a condition that did not hold 412; other errors stay as they are.
func AsUnmet(err error) error {
	if farm.CodeOf(err) == farm.CodeConflict && strings.HasPrefix(farm.MessageOf(err), farm.UnmetPrefix) {
		return Refusef(http.StatusPreconditionFailed, farm.CodeConflict, "%s", farm.MessageOf(err))
	}
	return err
}
