package store

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A script reads exactly the arguments that Go sends: a field that only one side has fails here.
func TestScriptsReadTheirArguments(t *testing.T) {
	t.Parallel()
	given := namedArgs()
	reads := regexp.MustCompile(`\barg\.(\w+)`)
	files, err := luaFiles.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".lua")
		text := mustLua(name)
		args, ok := given[name]
		if !ok {
			if reads.MatchString(text) {
				t.Errorf("%s.lua reads named arguments, and namedArgs does not have them", name)
			}
			continue
		}
		var read []string
		for _, match := range reads.FindAllStringSubmatch(text, -1) {
			read = append(read, match[1])
		}
		if strings.Contains(text, "arg[name]") { // sandbox_move.lua sets these in a loop
			read = append(read, "reason", "node", "container")
		}
		slices.Sort(read)
		names := slices.Sorted(slices.Values(argNames(reflect.TypeOf(args))))
		if diff := cmp.Diff(names, slices.Compact(read)); diff != "" {
			t.Errorf("%s.lua (-given by Go +read by Lua):\n%s", name, diff)
		}
	}
}

func TestNamedArguments(t *testing.T) {
	t.Parallel()
	type all struct {
		Text  string   `lua:"text"`
		On    bool     `lua:"on"`
		Off   bool     `lua:"off"`
		Int   int      `lua:"int"`
		Large uint64   `lua:"large"`
		Bytes []byte   `lua:"bytes"`
		Nil   []string `lua:"nil_list"`
		Empty []string `lua:"empty"`
		List  []string `lua:"list"`
	}
	args := all{Text: `a "b"`, On: true, Int: -1, Large: 1<<53 - 1, Bytes: []byte("{}"), Empty: []string{}, List: []string{`"`, "é", `\`}}
	want := []any{`a "b"`, "1", "", int64(-1), uint64(1<<53 - 1), []byte("{}"), "[]", "[]", `["\"","é","\\"]`}
	if diff := cmp.Diff(want, values(args)); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	code := "local arg = {text = ARGV[3], on = ARGV[4], off = ARGV[5], int = ARGV[6], large = ARGV[7], bytes = ARGV[8], nil_list = ARGV[9], empty = ARGV[10], list = ARGV[11], }\n"
	if diff := cmp.Diff(code, bind(args, 3)); diff != "" {
		t.Errorf("bind (-want +got):\n%s", diff)
	}
}
