package mcp

import (
	"bytes"
	"encoding/base64"
	"io"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// LocalFiles are the files on the machine where the caller runs.
type LocalFiles interface {
	Open(path string) (io.ReadCloser, int64, error) // with its size, -1 if that is unknown
	Create(path string) (io.WriteCloser, error)
}

// OpenUpload opens the content of an upload and gives its size, -1 if that is unknown. The content is the text in the argument
// content, the bytes in content_base64, or the file on the caller's machine that the argument param names. That file can only be
// read if local is not nil; otherwise the error names the program that can. The caller closes the content.
func OpenUpload(a Arguments, local LocalFiles, param, program string) (io.ReadCloser, int64, error) {
	hasText, hasBytes, hasLocal := a.has("content"), a.has("content_base64"), a.has(param)
	const instead = "give the file's text as content, or its bytes as content_base64"
	switch {
	case hasText && hasBytes:
		return nil, 0, BothContents()
	case hasText:
		s := a.text("content")
		return io.NopCloser(strings.NewReader(s)), int64(len(s)), nil
	case hasBytes:
		content, err := DecodeBase64(a, "content_base64")
		return io.NopCloser(bytes.NewReader(content)), int64(len(content)), err
	case hasLocal && local == nil:
		return nil, 0, LocalUnreadable(param, instead, program)
	case hasLocal:
		content, size, err := local.Open(a.text(param))
		if err != nil {
			return nil, 0, LocalError(param, a.text(param), err)
		}
		return content, size, nil
	default:
		return nil, 0, farm.Invalidf("content is missing: %s.", instead)
	}
}

// BothContents is the error for an upload with content and content_base64.
func BothContents() error { return farm.Invalidf("Give content or content_base64, not both.") }

// DecodeBase64 gives the bytes of an argument in base64, which may be broken into lines. They are never nil.
func DecodeBase64(a Arguments, name string) ([]byte, error) {
	content, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(a.text(name)), ""))
	if err != nil {
		return nil, farm.Invalidf("%s is not base64.", name)
	}
	return append([]byte{}, content...), nil
}

// LocalError is the error for a file on the caller's own machine. It tells the cause, since the file is the caller's.
func LocalError(param, name string, err error) error {
	return farm.Invalidf("%s %q cannot be used: %v.", param, farm.Shorten(name), err)
}

// LocalUnreadable is the error for a path on a machine that this server cannot read. It is the same whether or not the path
// exists. It tells what to give instead, and which program does read the file.
func LocalUnreadable(param, instead, program string) error {
	return farm.Invalidf("%s is on your machine, which this server cannot read: %s. The stdio server, %s, reads it.", param, instead, program)
}

// LocalUnwritable is the same for a path to write.
func LocalUnwritable(param, instead, program string) error {
	return farm.Invalidf("%s is on your machine, where this server cannot write: %s. The stdio server, %s, writes it.", param, instead, program)
}

// LocalName is the last element of a path on the caller's machine, with the separators of any system. It is empty if the path
// names no file.
func LocalName(path string) string {
	path = strings.TrimRight(strings.ReplaceAll(path, "\\", "/"), "/")
	name := path[strings.LastIndexByte(path, '/')+1:]
	if name == "." || name == ".." {
		return ""
	}
	return name
}
