package db

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// preludeFile is the file of a folder that has what scripts share, in place of a script.
const preludeFile = "prelude.lua"

//go:embed prelude.lua
var prelude embed.FS

// Numbers that scripts share with Go.
const (
	// MaxStops is how many interrupts and restarts of a sandbox are unfinished at most: twice as many as it has contexts. No quota bounds them.
	MaxStops = 64
	// endMessageBytes is how much of a record the message of the end of a job has at most. Whoever waits reads a longer one.
	endMessageBytes = 8 << 10
)

// script is a Lua script.
//
// KEYS[1] is what the keys of its slot begin with. ARGV[1] is what all keys of the farm begin with, ARGV[2] the time in microseconds. A script
// reads what follows by name, as fields of the table arg, or by position from ARGV[3] on. Its first lines say what it replies.
type script struct {
	*redis.Script
	name string
	args []string // names of the arguments that it reads, in the order of ARGV; none: it reads them by position

	once   sync.Once
	fields []int // of the struct that has them
}

// loadScripts reads the scripts of some folders, by the names of their files. generated is Lua code before the preludes of the folders.
func loadScripts(generated []string, folders ...fs.FS) map[string]*script {
	texts := map[string]string{}
	for _, folder := range folders {
		files, err := fs.Glob(folder, "*.lua")
		for _, file := range files {
			text, readErr := fs.ReadFile(folder, file)
			err = errors.Join(err, readErr)
			if file == preludeFile {
				generated = append(generated, string(text))
			} else {
				texts[strings.TrimSuffix(file, ".lua")] = string(text)
			}
		}
		if err != nil {
			panic("read embedded scripts: " + err.Error()) // they are part of the program
		}
	}
	shared := newShared(generated...)
	scripts := make(map[string]*script, len(texts))
	for name, text := range texts {
		args := argsOf(text)
		scripts[name] = &script{Script: redis.NewScript(shared.of(text) + bind(args) + text), name: name, args: args}
	}
	return scripts
}

// generatedLua is the Lua code that follows from the domain: transition tables, limits and quotas.
func generatedLua(limits farm.Limits) string {
	var b strings.Builder
	table := func(name string) { fmt.Fprintf(&b, "local %s = {", name) }
	end := func() { b.WriteString("}\n\n") }
	table("JOBS")
	for _, from := range farm.JobStates() {
		fmt.Fprintf(&b, "%s = {", from)
		for _, to := range farm.JobStates() {
			if from.To(to) {
				fmt.Fprintf(&b, "%s = true, ", to)
			}
		}
		b.WriteString("},\n")
	}
	end()
	table("SANDBOXES")
	for _, from := range farm.SandboxStates() {
		fmt.Fprintf(&b, "%s = {", from)
		for _, to := range farm.SandboxStates() {
			if from.To(to) {
				fmt.Fprintf(&b, "%s = true, ", to)
			}
		}
		b.WriteString("},\n")
	}
	end()
	table("ACCEPTS")
	for _, state := range farm.SandboxStates() {
		if state.Accepts() {
			fmt.Fprintf(&b, "%s = true, ", state)
		}
	}
	end()
	table("QUOTAS")
	quotas := limits.TenantQuotas()
	for _, name := range farm.QuotaNames() {
		fmt.Fprintf(&b, "%s = %s, ", name, strconv.FormatFloat(quotas.Get(name), 'f', -1, 64))
	}
	end()
	fmt.Fprintf(&b, "local SHARE, DEPTH, STOPS, END_MESSAGE, ARTIFACT_BYTES = %d, %d, %d, %d, %d\n",
		limits.QueueShare, limits.MaxQueueDepth, MaxStops, endMessageBytes, farm.ObjectBytes)
	return b.String()
}

// argsOf are the names of the arguments that a script reads.
func argsOf(text string) []string {
	var names []string
	for _, found := range argument.FindAllStringSubmatch(comment.ReplaceAllString(text, ""), -1) {
		names = append(names, found[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// bind is the Lua code that gives a script its arguments by name.
func bind(names []string) string {
	if len(names) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("local arg = {")
	for i, name := range names {
		fmt.Fprintf(&b, "%s = ARGV[%d], ", name, i+3)
	}
	b.WriteString("}\n")
	return b.String()
}

// argv is ARGV of a call. args is one struct whose fields have the names as lua tags, or the arguments by position.
func (s *script) argv(prefix string, now time.Time, args []any) []any {
	if len(s.args) > 0 {
		args = s.values(args[0])
	}
	return append([]any{prefix, Micros(now)}, args...)
}

// values are the fields of a struct in the order of the script's arguments. Every field is sent, also a zero one. A bool is "1" or "", a list a JSON
// array, [] if it is empty. A field that only one side has is a bug of ours, which the first call of the script finds.
func (s *script) values(args any) []any {
	v := reflect.ValueOf(args)
	s.once.Do(func() {
		at := map[string]int{}
		for i := range v.NumField() {
			at[v.Type().Field(i).Tag.Get("lua")] = i
		}
		for _, name := range s.args {
			i, ok := at[name]
			if !ok {
				panic(fmt.Sprintf("%s.lua reads arg.%s, which %s does not have", s.name, name, v.Type()))
			}
			s.fields = append(s.fields, i)
		}
		if len(at) != len(s.args) {
			panic(fmt.Sprintf("%s.lua reads %v, and %s has %d lua tags", s.name, s.args, v.Type(), len(at)))
		}
	})
	out := make([]any, len(s.fields))
	for i, field := range s.fields {
		out[i] = argValue(v.Field(field))
	}
	return out
}

func argValue(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Bool:
		return flag(v.Bool())
	case reflect.Int, reflect.Int64:
		return v.Int() // in decimal; Lua holds integers exactly up to 2^53
	case reflect.Uint64:
		return v.Uint()
	case reflect.String:
		return v.String()
	}
	switch value := v.Interface().(type) {
	case []byte:
		return value
	case []string:
		return List(value)
	}
	panic(fmt.Sprintf("an argument of a script cannot be a %s", v.Type()))
}

// Run calls a script on the keys of a slot. args is a struct with lua tags if the script reads its arguments by name. The first element of the reply
// says how it went.
func (d *DB) Run(ctx context.Context, what, script, slot string, args ...any) (Reply, error) {
	return d.RunOn(ctx, what, script, d.Index(slot, ""), args...)
}

// RunOn is Run for a script of one key.
func (d *DB) RunOn(ctx context.Context, what, script, key string, args ...any) (Reply, error) {
	called := d.script(script)
	result, err := called.Run(ctx, d.Redis, []string{key}, called.argv(d.prefix, d.Now(), args)...).Slice()
	return checked(what, result, err)
}

// RunConfirmed is Run for a write that must outlive a crash of Redis: it waits as the store's Durability says. An error may mean that it did
// not wait long enough: the caller must be able to repeat the call.
func (d *DB) RunConfirmed(ctx context.Context, what, script, slot string, args ...any) (Reply, error) {
	if d.batch.confirm == nil {
		return d.Run(ctx, what, script, slot, args...)
	}
	return d.RunBatched(ctx, what, script, slot, args...)
}

// RunBatched is RunConfirmed for calls of which many are ready at the same time, see batch.
func (d *DB) RunBatched(ctx context.Context, what, script, slot string, args ...any) (Reply, error) {
	called := d.script(script)
	result, err := d.batch.run(ctx, called.Script, []string{d.Index(slot, "")}, called.argv(d.prefix, d.Now(), args))
	return checked(what, result, err)
}

// script is the script in a file; its name is part of the program.
func (d *DB) script(name string) *script {
	found := d.scripts[name]
	if found == nil {
		panic("there is no script " + name + ".lua")
	}
	return found
}

func checked(what string, result []any, err error) (Reply, error) {
	if errors.Is(err, errUnconfirmed) {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err != nil {
		return nil, Wrap(what, err)
	}
	if len(result) == 0 {
		return nil, fmt.Errorf("%s: script gave an empty reply", what)
	}
	return result, nil
}

// sharedLua is the Lua code that scripts share, in paragraphs, each of which defines names. Redis runs a script from its first line with every
// call, so a script gets only the paragraphs that it uses.
type sharedLua []paragraph

type paragraph struct {
	text  string
	names []string // that it defines
	words []string // of its code
}

var (
	argument   = regexp.MustCompile(`\barg\.(\w+)`)
	definition = regexp.MustCompile(`(?m)^local (?:function )?([A-Za-z_, ]+)`)
	comment    = regexp.MustCompile(`(?m)--.*$`)
)

// newShared makes a prelude of pieces of code. Blank lines end paragraphs, so there are none inside functions. Only what begins a line after
// "local" is a name that others may use.
func newShared(pieces ...string) sharedLua {
	var p sharedLua
	for text := range strings.SplitSeq(strings.Join(pieces, "\n"), "\n\n") {
		code := comment.ReplaceAllString(text, "")
		var names []string
		for _, found := range definition.FindAllStringSubmatch(code, -1) {
			for name := range strings.SplitSeq(found[1], ",") {
				names = append(names, strings.TrimSpace(name))
			}
		}
		if len(names) > 0 {
			p = append(p, paragraph{text, names, words(code)})
		}
	}
	return p
}

// words are the names, numbers and keywords of code without comments.
func words(code string) []string {
	return strings.FieldsFunc(code, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}

// of is what a script needs before it, in the order of the prelude.
func (p sharedLua) of(script string) string {
	used := map[string]bool{}
	use := func(words []string) {
		for _, word := range words {
			used[word] = true
		}
	}
	use(words(comment.ReplaceAllString(script, "")))
	var needed []string
	for _, part := range slices.Backward(p) { // a paragraph uses only those before it
		if slices.ContainsFunc(part.names, func(name string) bool { return used[name] }) {
			use(part.words)
			needed = append(needed, part.text)
		}
	}
	slices.Reverse(needed)
	return strings.Join(needed, "\n") + "\n"
}
