package db

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// testScript makes a script of a text.
func testScript(text string) *script {
	return loadScripts(nil, fstest.MapFS{"one.lua": {Data: []byte(text)}})["one"]
}

// A script gets its arguments by the names that it reads, whatever their order in Go.
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
	const text = "return arg.list .. arg.int .. arg.int -- not arg.comment\n.. arg.bytes .. arg.empty .. arg.large .. arg.nil_list .. arg.off .. arg.on .. arg.text\n"
	s := testScript(text)
	code := "local arg = {bytes = ARGV[3], empty = ARGV[4], int = ARGV[5], large = ARGV[6], list = ARGV[7], nil_list = ARGV[8], off = ARGV[9], on = ARGV[10], text = ARGV[11], }\n"
	testbed.Diff(t, "bind", code, bind(s.args))
	args := all{Text: `a "b"`, On: true, Int: -1, Large: 1<<53 - 1, Bytes: []byte("{}"), Empty: []string{}, List: []string{`"`, "é", `\`}}
	want := []any{"sf:", "1000000", []byte("{}"), "[]", int64(-1), uint64(1<<53 - 1), `["\"","é","\\"]`, "[]", "", "1", `a "b"`}
	for range 2 {
		testbed.Diff(t, "argv", want, s.argv("sf:", time.Unix(1, 0), []any{args}))
	}
	testbed.Diff(t, "argv by position", []any{"sf:", "1000000", "id", 2}, testScript("return ARGV[3]").argv("sf:", time.Unix(1, 0), []any{"id", 2}))
}

// A script reads exactly the arguments that Go sends: a field that only one side has fails at the first call.
func TestScriptsReadTheirArguments(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]any{
		"OnlyInLua": struct {
			ID string `lua:"id"`
		}{},
		"OnlyInGo": struct {
			ID   string `lua:"id"`
			Size int    `lua:"size"`
			More int    `lua:"more"`
		}{},
		"WithoutTag": struct {
			ID   string `lua:"id"`
			Size int    `lua:"size"`
			More int
		}{},
	} {
		func() {
			defer func() {
				testbed.Check(t, recover() != nil, "%s: the call was made", name)
			}()
			testScript("return {arg.id, arg.size}").argv("sf:", time.Time{}, []any{args})
		}()
	}
}

// A script gets the paragraphs that it uses, and those that they use, in their order, but none that only comments name.
func TestPreludeGivesWhatAScriptUses(t *testing.T) {
	t.Parallel()
	p := newShared("local A, B = 1, 2\n", "-- Uses A.\nlocal function first() return A end\n\nlocal function second()\n  return first() -- not third\nend\n",
		"local function third() return 3 end\n")
	for script, want := range map[string]string{
		"return second()":             "A, B first second",
		"return B":                    "A, B",
		"return first() + third()":    "A, B first third",
		"return 1 -- second() helps":  "",
		"return seconds + thirdparty": "",
	} {
		got := p.of(script)
		var defined []string
		for line := range strings.Lines(got) {
			if name, ok := strings.CutPrefix(line, "local function "); ok {
				defined = append(defined, name[:strings.Index(name, "(")])
			} else if name, ok := strings.CutPrefix(line, "local "); ok {
				defined = append(defined, name[:strings.Index(name, " =")])
			}
		}
		testbed.Check(t, strings.Join(defined, " ") == want, "%q gets %q, want %q:\n%s", script, defined, want, got)
	}
}

// fakeDocuments stores documents in a map.
type fakeDocuments map[string][]byte

func (d fakeDocuments) PutDocument(_ context.Context, key string, data []byte) error {
	d[key] = data
	return nil
}

func (d fakeDocuments) GetDocument(_ context.Context, key string) ([]byte, error) {
	if data, ok := d[key]; ok {
		return data, nil
	}
	return nil, farm.NotFoundf("There is no such object.")
}

func (d fakeDocuments) Delete(context.Context, ...string) error                      { return nil }
func (d fakeDocuments) AbortUploads(context.Context, string, time.Time) (int, error) { return 0, nil }
func (d fakeDocuments) DeletePrefix(context.Context, string, ...string) (int, error) { return 0, nil }

func TestSpillAtTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 10
	key := DocumentKey(farm.Ref{Tenant: "acme", ID: "job_1"}, "result")
	for size, spilled := range map[int]bool{0: false, limit - 1: false, limit: false, limit + 1: true} {
		documents := fakeDocuments{}
		d := &DB{Documents: documents}
		data := strings.Repeat("x", size)
		value, err := d.StoreLarge(t.Context(), key, []byte(data), limit)
		if err != nil || (string(value) != data) != spilled || (len(documents) == 1) != spilled {
			t.Errorf("StoreLarge of %d bytes = %q, %v, %d documents", size, value, err, len(documents))
		}
		got, err := d.Resolve(t.Context(), string(value))
		testbed.Check(t, err == nil && got == data, "resolve of %d bytes = %q, %v", size, got, err)
	}
}

func TestResolveWithoutTheDocument(t *testing.T) {
	t.Parallel()
	_, err := (&DB{Documents: fakeDocuments{}}).Resolve(t.Context(), "@records/acme/job_1/result")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "resolve of a missing document = %v", err)
	_, err = (&DB{}).Resolve(t.Context(), "@records/acme/job_1/result")
	testbed.Check(t, errors.Is(err, ErrNoDocuments), "resolve without an object store = %v", err)
}

// A large document is decoded on a core of its tenant, of which it has half: here it has none left.
func TestLargeDocumentsAreDecodedOnACore(t *testing.T) {
	t.Parallel()
	ctx := testbed.WithoutCore(t, budget.New(0), "acme")
	for size, want := range map[int]bool{budget.SmallBytes: true, budget.SmallBytes + 1: false} {
		var got string
		n, err := new(DB).ReadDocument(ctx, `"`+strings.Repeat("x", size-2)+`"`, &got)
		decoded := n == size && len(got) == size-2
		testbed.Check(t, decoded == want && errors.Is(err, context.Canceled) != want, "%d bytes, without a core: decoded %v, %v", size, decoded, err)
	}
}

// A text of a record is as long in JSON as its caller made it: escaped for HTML, one of "<" is six times as long.
func TestRecordsAreNotEscapedForHTML(t *testing.T) {
	t.Parallel()
	got, err := Encode("text", map[string]string{"a": "<&>\n"})
	testbed.Check(t, err == nil && string(got) == `{"a":"<&>\n"}`, "Encode = %q, %v", got, err)
	got, err = Encode("text", func() {})
	testbed.Check(t, got == nil && err != nil && strings.Contains(err.Error(), "encode text: "), "Encode of a function = %q, %v", got, err)
}
