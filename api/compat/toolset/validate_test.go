package toolset_test

import (
	"context"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
)

func TestIncompleteToolsetsAreNotServed(t *testing.T) {
	t.Parallel()
	complete := func() *toolset.Toolset {
		return &toolset.Toolset{
			Name: "a", Title: "A", About: "About A.", Instructions: "Do this.",
			Refuse: func(string, mcp.Arguments, error) mcp.Reply { return mcp.Reply{} },
			Tools: []toolset.Tool{{
				Name: "run", Title: "Run", About: "Runs.", Run: func(context.Context, *toolset.Call) (any, error) { return nil, nil },
			}},
		}
	}
	if _, err := complete().Serve(toolset.Env{}, "1", mcp.HTTP{}); err != nil {
		t.Fatalf("a complete one: %v", err)
	}
	for want, change := range map[string]func(*toolset.Toolset){
		"a toolset needs Refuse": func(s *toolset.Toolset) { s.Refuse = nil },
		"Instructions":           func(s *toolset.Toolset) { s.Instructions = "" },
		"there are no tools":     func(s *toolset.Toolset) { s.Tools = nil },
		`tool "run": Run`:        func(s *toolset.Toolset) { s.Tools[0].Run = nil },
		`tool "run": Name, T`:    func(s *toolset.Toolset) { s.Tools[0].About = "" },
		"listed twice":           func(s *toolset.Toolset) { s.Tools = append(s.Tools, s.Tools[0]) },
	} {
		set := complete()
		change(set)
		if _, err := set.Serve(toolset.Env{}, "1", mcp.HTTP{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
