package testbed

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"io/fs"
	"path"
	"strings"
	"sync"
)

// Stop is a place in the traffic with Redis at which a test acts, once.
type Stop struct {
	// Call is the script or the command: "job_finish", or "hgetall". See Scripts for the names of scripts.
	Call string
	// With is text that a word of the call contains, such as the id of a job; empty: any call.
	With string
	// Nth says which of these calls it is, counted from 1; 0 means 1.
	Nth int
	// After lets Redis do the call first: the client has not got the answer. Otherwise Redis has not got the call.
	After bool
	// Do acts while the call, or its answer, stands still. It gets the words of the call. If it returns false, the connection is closed, and
	// nothing passes.
	Do func(words []string) (pass bool)

	words []string
}

// Scripts names Lua scripts. It learns their hashes from the calls that carry a script's text. It is safe for concurrent use.
type Scripts struct {
	ends   map[string]string // name → how the text ends
	pieces map[string]string // name → a piece of the text

	mu     sync.Mutex
	byHash map[string]string
}

// NewScripts names scripts after the .lua files in a folder: a script has the name of the file that its text ends with. more has further
// names, with a piece of the text that no other script has.
func NewScripts(folder fs.FS, more map[string]string) (*Scripts, error) {
	s := &Scripts{ends: map[string]string{}, pieces: more, byHash: map[string]string{}}
	err := fs.WalkDir(folder, ".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(file) != ".lua" {
			return err
		}
		text, err := fs.ReadFile(folder, file)
		s.ends[strings.TrimSuffix(path.Base(file), ".lua")] = string(text)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// call is the name of a command, or of the script that it calls. A script that is called by an unknown hash has no name: Redis will ask for
// its text.
func (s *Scripts) call(words []string) string {
	name := strings.ToLower(words[0])
	if s == nil || len(words) < 2 || name != "eval" && name != "evalsha" {
		return name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "evalsha" {
		return s.byHash[words[1]]
	}
	sum := sha1.Sum([]byte(words[1])) //nolint:gosec // as above
	hash := hex.EncodeToString(sum[:])
	if _, known := s.byHash[hash]; !known {
		s.byHash[hash] = s.nameOf(words[1])
	}
	return s.byHash[hash]
}

// nameOf is the name of a script; "" for an unknown one. Of two files that fit, it is the longer one.
func (s *Scripts) nameOf(text string) (name string) {
	for candidate, piece := range s.pieces {
		if strings.Contains(text, piece) {
			name = candidate
		}
	}
	longest := 0
	for candidate, end := range s.ends {
		if len(end) > longest && strings.HasSuffix(text, end) {
			name, longest = candidate, len(end)
		}
	}
	return name
}

// matches counts a call, and reports whether it is the one to stop at.
func (s *Stop) matches(call string, words []string) bool {
	if call != s.Call {
		return false
	}
	found := s.With == ""
	for _, word := range words[1:] {
		found = found || strings.Contains(word, s.With)
	}
	if found {
		s.Nth--
	}
	if !found || s.Nth > 0 {
		return false
	}
	s.words = words
	return true
}
