package compat_test

import (
	"context"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
)

func TestIncompleteToolsetsAreNotServed(t *testing.T) {
	t.Parallel()
	complete := func() *compat.Toolset {
		return &compat.Toolset{
			Name: "a", Title: "A", About: "About A.", Instructions: "Do this.",
			Refuse: func(string, mcp.Arguments, error) mcp.Reply { return mcp.Reply{} },
			Tools: []compat.Tool{{
				Name: "run", Title: "Run", About: "Runs.", Run: func(context.Context, *compat.Call) (any, error) { return nil, nil },
			}},
		}
	}
	if _, err := complete().Serve(compat.Env{}, "1", mcp.HTTP{}); err != nil {
		t.Fatalf("a complete one: %v", err)
	}
	for want, change := range map[string]func(*compat.Toolset){
		"a toolset needs Refuse": func(s *compat.Toolset) { s.Refuse = nil },
		"Instructions":           func(s *compat.Toolset) { s.Instructions = "" },
		"there are no tools":     func(s *compat.Toolset) { s.Tools = nil },
		`tool "run": Run`:        func(s *compat.Toolset) { s.Tools[0].Run = nil },
		`tool "run": Name, T`:    func(s *compat.Toolset) { s.Tools[0].About = "" },
		"listed twice":           func(s *compat.Toolset) { s.Tools = append(s.Tools, s.Tools[0]) },
	} {
		set := complete()
		change(set)
		if _, err := set.Serve(compat.Env{}, "1", mcp.HTTP{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestEveryToolsetIsComplete(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, set := range compat.Toolsets() {
		if err := set.Validate(); err != nil {
			t.Error(err)
		}
		if names[set.Name] {
			t.Errorf("two toolsets have the name %s", set.Name)
		}
		names[set.Name] = true
	}
	if !names[compat.Bare] {
		t.Errorf("there is no toolset %s to serve at /sse", compat.Bare)
	}
}
