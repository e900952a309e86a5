package farm

import (
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of the operations on files anywhere in a sandbox.
const (
	// MaxFSEntries bounds the entries of a page of a listing.
	MaxFSEntries = 10_000
	// MaxFSDepth bounds how far below its directory a listing goes.
	MaxFSDepth = 1000
	// MaxLinkTarget bounds the bytes of the target of a symbolic link (PATH_MAX of Linux, less its NUL).
	MaxLinkTarget = 4095
	// MaxIgnored is how many patterns of names a watch may leave out.
	MaxIgnored = 64
	// MaxMetadata is how many pairs of metadata a file has.
	MaxMetadata = 64
	// PagePairs times its limit is how many pairs the entries of a page of a listing have, and MaxMetadata more.
	PagePairs = 4
	// MaxMetadataKey and MaxMetadataValue bound the bytes of each.
	MaxMetadataKey   = 128
	MaxMetadataValue = 1024
	// MaxMode is the largest mode of a file.
	MaxMode = 0o7777
)

// FSEntry describes a file anywhere in a sandbox, as its user sees it.
type FSEntry struct {
	Path       string    `json:"path"`              // absolute
	Type       string    `json:"type"`              // file, dir, symlink or other
	Size       int64     `json:"size"`              // bytes of a file; of anything else 0
	DirSize    int64     `json:"dirsize,omitempty"` // of a directory, as its file system counts; of anything else 0
	Mode       string    `json:"mode"`              // four octal digits, such as 0644
	UID        int       `json:"uid"`
	GID        int       `json:"gid"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     string    `json:"target,omitempty"` // of a symbolic link, as it is written; empty if it is not UTF-8
	// Metadata are the extended attributes below MetadataPrefix; nil: there are none.
	Metadata map[string]string `json:"metadata,omitempty"`
	ETag     string            `json:"etag"` // changes with the content, the mode and the owner; without quotes
}

// MetadataPrefix begins the names of the extended attributes that are metadata. The name is E2B's, since programs in the sandbox use it too.
const MetadataPrefix = "user.e2b."

// CheckMetadata checks the metadata of a file: keys and values in visible ASCII, values also with spaces, and not more of them than fit.
func CheckMetadata(m map[string]string) error {
	if len(m) > MaxMetadata {
		return Invalidf("the metadata has %d keys; at most %d are allowed", len(m), MaxMetadata)
	}
	for key, value := range m {
		switch {
		case key == "" || len(key) > MaxMetadataKey:
			return Invalidf("a key of the metadata has %d bytes; it has 1 to %d", len(key), MaxMetadataKey)
		case len(value) > MaxMetadataValue:
			return Invalidf("the metadata %q has %d bytes; at most %d are allowed", key, len(value), MaxMetadataValue)
		case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }), strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			return Invalidf("the metadata %q is not visible ASCII", Shorten(key))
		}
	}
	return nil
}

// FSListing is a page of a listing, in the order of a walk: by name in each directory, a directory before its contents.
type FSListing struct {
	Entries []FSEntry `json:"entries"`
	More    bool      `json:"more"`    // there are more entries after the last one
	LeftOut int       `json:"leftout"` // entries that were left out, with all below them: their names are not UTF-8, or their paths are too long
}

// CleanFSPath checks a caller's path of any file and returns it absolute and cleaned. A relative path is one in the workspace. "..", NUL, what
// is not UTF-8, names over MaxNameBytes and paths over MaxPathBytes give CodeInvalid.
func CleanFSPath(p string) (string, error) {
	if !strings.HasPrefix(p, "/") {
		p = Workspace + "/" + p
	}
	if err := checkPathText(p); err != nil {
		return "", err
	}
	return cleanNames(p)
}

// FSWrite says how a file anywhere in a sandbox is written.
type FSWrite struct {
	How  FSHow
	Mode int // of the file; -1: that of the file that is there, or 0644
	// Offset is where FSAt begins.
	Offset int64
	// Metadata becomes that of the file, also if it is empty; nil: it stays as it is. Only FSOverwrite has it.
	Metadata map[string]string
	// Match is the etag that the file must have, or "*" for any; empty: no condition.
	Match string
	// NoMatch is an etag that the file must not have, or "*": there must be none; empty: no condition.
	NoMatch string
}

// UnmetPrefix begins the message of a conflict that says that the condition of a write does not hold.
const UnmetPrefix = "The condition of the request does not hold: "

// FSHow is a way to write a file.
type FSHow string

// The ways to write a file.
const (
	FSReplace FSHow = "replace" // written aside and renamed: readers see the old content or the new one
	FSAppend  FSHow = "append"  // in place, behind the end
	FSAt      FSHow = "at"      // in place, from an offset on
	// FSOverwrite is in place, instead of what was there: who watches the file sees that it changes.
	FSOverwrite FSHow = "overwrite"
)

// Workspace is the working directory of every sandbox.
const Workspace = "/workspace"

// UserHome is the workspace, as code written for E2B names it: in the farm's images it is a link to Workspace.
const UserHome = "/home/user"

// MaxNameBytes is the longest name of one path element (NAME_MAX of Linux file systems).
const MaxNameBytes = 255

// MaxPathBytes is the longest path in the workspace (PATH_MAX of Linux, less the workspace's own name).
const MaxPathBytes = 4000

// HiddenPath reports whether a path, of any system, is hidden, or in a folder that is: one of its elements begins with a dot, and is not ".".
func HiddenPath(name string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(name, func(r rune) bool { return r == '/' || r == '\\' }), func(part string) bool {
		return part != "." && strings.HasPrefix(part, ".")
	})
}

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
