package rest

import (
	"net/url"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// FilePath is the path of a file after …/files/. It is decoded once, here, because a file name may hold any character.
func FilePath(c *gin.Context) (string, error) {
	path, ok, err := PathAfter(c, "/files/")
	if err == nil && !ok {
		err = farm.Invalidf("path is empty: name a file in the workspace")
	}
	return path, err
}

// PathAfter is the rest of the request's path after a part, decoded. ok is false if the path does not contain the part.
func PathAfter(c *gin.Context, part string) (rest string, ok bool, err error) {
	_, escaped, ok := strings.Cut(c.Request.URL.EscapedPath(), part)
	if rest, err = url.PathUnescape(escaped); err != nil {
		return "", ok, BadRequestf("the path is not well escaped")
	}
	return rest, ok, nil
}
