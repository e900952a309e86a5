package farm

import (
	"path"
	"strings"
	"unicode/utf8"
)

// Workspace is the working directory of every sandbox.
const Workspace = "/workspace"

// UserHome is the workspace, as code written for E2B names it: in the farm's images it is a link to Workspace.
const UserHome = "/home/user"

// MaxNameBytes is the longest name of one path element (NAME_MAX of Linux file systems).
const MaxNameBytes = 255

// MaxPathBytes is the longest path in the workspace (PATH_MAX of Linux, less the workspace's own name).
const MaxPathBytes = 4000

// CleanPath checks a caller's path and returns it cleaned and relative to the workspace; "." is the workspace itself.
// An absolute path is accepted if it lies in /workspace. Anything that could lead outside, NUL, names over MaxNameBytes
// and paths over MaxPathBytes give CodeInvalid.
func CleanPath(p string) (string, error) {
	if err := checkPathText(p); err != nil {
		return "", err
	}
	if rest, ok := strings.CutPrefix(p, Workspace); ok && (rest == "" || rest[0] == '/') {
		p = strings.TrimLeft(rest, "/")
	}
	if strings.HasPrefix(p, "/") {
		return "", Invalidf("path %q is absolute and not in %s", Shorten(p), Workspace)
	}
	return cleanNames(p)
}

// checkPathText refuses a path that is not UTF-8, holds a NUL byte or is too long.
func checkPathText(p string) error {
	switch {
	case !utf8.ValidString(p):
		return Invalidf("path is not UTF-8")
	case strings.ContainsRune(p, 0):
		return Invalidf("path holds a NUL byte")
	case len(p) > MaxPathBytes:
		return Invalidf("path has %d bytes; at most %d are allowed", len(p), MaxPathBytes)
	}
	return nil
}

// cleanNames cleans a path, and refuses ".." and names that are too long.
func cleanNames(p string) (string, error) {
	for element := range strings.SplitSeq(p, "/") {
		if element == ".." {
			return "", Invalidf("path %q holds \"..\"", Shorten(p))
		}
		if len(element) > MaxNameBytes {
			return "", Invalidf("a name in the path has %d bytes; at most %d are allowed", len(element), MaxNameBytes)
		}
	}
	return path.Clean(p), nil
}

// CleanFilePath is CleanPath for a file: the workspace itself is refused.
func CleanFilePath(p string) (string, error) {
	clean, err := CleanPath(p)
	if err == nil && clean == "." {
		return "", Invalidf("path is empty: name a file in the workspace")
	}
	return clean, err
}
