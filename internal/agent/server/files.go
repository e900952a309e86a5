package server

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// rangeSentence is the error message when the offset is past the end of the file; its status is 416.
const rangeSentence = "the offset is past the end of the file"

func (s *Server) getFiles(_ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	limit, err := number(r, "limit")
	if err != nil {
		return nil, err
	}
	return s.files.List(query.Get("path"), agent.ListQuery{
		Recursive: query.Get("recursive") == "true", After: query.Get("after"), Limit: int(min(limit, math.MaxInt32)), //nolint:gosec // bounded
	})
}

func (s *Server) getStat(_ http.ResponseWriter, r *http.Request) (any, error) {
	return s.files.Stat(r.URL.Query().Get("path"))
}

func (s *Server) deleteFiles(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.files.Remove(r.URL.Query().Get("path"))
}

func (s *Server) postMkdir(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.files.Mkdir(r.URL.Query().Get("path"))
}

func (s *Server) postMove(w http.ResponseWriter, r *http.Request) (any, error) {
	var in struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	if err := readJSON(w, r, &in); err != nil {
		return nil, err
	}
	return nil, s.files.Move(in.From, in.To)
}

func (s *Server) putContent(_ http.ResponseWriter, r *http.Request) (any, error) {
	mode := fs.FileMode(0o644)
	if text := r.URL.Query().Get("mode"); text != "" {
		n, err := strconv.ParseUint(text, 8, 32)
		if err != nil || n > 0o777 {
			return nil, farm.Invalidf("mode %q is not three octal digits", execution.Cut(text, 16))
		}
		mode = fs.FileMode(n)
	}
	return s.files.Write(r.URL.Query().Get("path"), mode, r.Body)
}

func (s *Server) postTar(_ http.ResponseWriter, r *http.Request) (any, error) {
	if err := s.files.PutTar(r.URL.Query().Get("path"), r.Body); err != nil {
		return nil, err
	}
	_, err := io.Copy(io.Discard, r.Body) // padding after the end of the archive
	if err != nil {
		return nil, fmt.Errorf("read rest of body: %w", err)
	}
	return nil, nil
}

func (s *Server) getTar(w http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.files.WriteTar(r.URL.Query().Get("path"), w)
}

// getContent sends a file or a part of it, after a header with the entry of the whole file.
func (s *Server) getContent(w http.ResponseWriter, r *http.Request) (any, error) {
	offset, err := integer(r, "offset")
	if err != nil {
		return nil, err
	}
	length, err := integer(r, "length")
	if err != nil {
		return nil, err
	}
	f, e, err := s.files.Open(r.URL.Query().Get("path"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if offset < 0 {
		offset = max(0, e.Size+offset)
	}
	if offset > e.Size {
		return nil, farm.Invalidf(rangeSentence)
	}
	if length <= 0 || length > e.Size-offset {
		length = e.Size - offset
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, files.Problem(err, e.Path)
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	w.Header().Set("X-Entry", strings.ReplaceAll(string(raw), "\x7f", `\u007f`)) // the only control character that JSON does not escape
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	w.WriteHeader(http.StatusOK)
	if _, err := io.CopyN(w, f, length); err != nil { // if the file has shrunk, the stream breaks and the reader gets an error
		return nil, err
	}
	return nil, nil
}

// integer parses a query parameter that may be negative; a missing one is 0.
func integer(r *http.Request, name string) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, farm.Invalidf("%s is not a number", name)
	}
	return n, nil
}
