package kernel_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A difference fails the test unless it is listed, and so does a listed one that is gone.
func TestDifferencesAreListed(t *testing.T) {
	t.Parallel()
	at := func(count int, stdout string) []cell {
		return []cell{{Status: "ok", Count: count, Parts: []part{{Stdout: stdout}}}}
	}
	for name, c := range map[string]struct {
		ours, theirs []cell
		listed       []string
		want         []string // beginnings
	}{
		"Equal":         {at(1, "a"), at(1, "a"), nil, nil},
		"Unlisted":      {at(1, "a"), at(1, "b"), nil, []string{"stdout differs"}},
		"Listed":        {at(1, "a"), at(1, "b"), []string{"stdout"}, nil},
		"OneUnlisted":   {at(1, "a"), at(2, "b"), []string{"stdout"}, []string{"count differs"}},
		"Gone":          {at(1, "a"), at(1, "a"), []string{"stdout"}, []string{"stdout does not differ"}},
		"AtTimes":       {at(1, "a"), at(1, "b"), []string{"stdout?"}, nil},
		"NotThisTime":   {at(1, "a"), at(1, "a"), []string{"stdout?"}, nil},
		"OneCellIsLess": {at(1, "a"), append(at(1, "a"), cell{Status: "ok"}), []string{"count"}, []string{"status differs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := verdicts(c.listed, compare(c.ours, c.theirs))
			for i, want := range c.want {
				testbed.Require(t, i < len(got) && strings.HasPrefix(got[i], want), "got %q, want %q", got, c.want)
			}
			testbed.Require(t, c.want != nil || len(got) == 0, "got %q", got)
		})
	}
}

// The same output in another order is a difference of its own.
func TestOrderIsCompared(t *testing.T) {
	t.Parallel()
	value := &shown{Number: 1, Data: map[string]string{"text/plain": "1"}}
	ours := []cell{{Parts: []part{{Stdout: "ab", Redacted: value}, {}}}}
	theirs := []cell{{Parts: []part{{Stdout: "a", Redacted: value}, {Stdout: "b"}}}}
	found := compare(ours, theirs)
	testbed.Require(t, len(found) == 1 && found[0].aspect == "order", "found %+v", found)
}

// What differs from run to run is equal after the normalisation; what code prints is not changed.
func TestNormalisation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"<C object at 0x7f06c8c79a30>":                     "<C object at ADDRESS>",
		"\x1b[31mred\x1b[0m":                               "red",
		"/tmp/x/workspace/a.py":                            "DIR/workspace/a.py",
		"/tmp/x/tmp/ipykernel_12/345.py:1: Warning":        "CELL.py:1: Warning",
		"CPU times: user 12 μs, sys: 1e+03 ns, total: 3 s": "CPU times: user TIME, sys: TIME, total: TIME",
		"1.5 ms ± 2 ns per loop (n, 100 loops each)":       "TIME ± TIME per loop (n, N loops each)",
		"Decimal('1.5') 0xff 42":                           "Decimal('1.5') 0xff 42",
	} {
		testbed.Diff(t, fmt.Sprintf("normal(%q)", text), want, normal(text, "/tmp/x"))
	}
}

// Every file of testdata/difftest can be read, and no program is there twice or listed twice.
func TestProgramsAreReadable(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "difftest", "*.ipy"))
	testbed.Must(t, err)
	found := map[string]bool{}
	for _, path := range paths {
		for _, p := range readPrograms(t, path) {
			found[p.Name] = true
		}
	}
	listed, err := differences(13)
	testbed.Must(t, err)
	for name := range listed {
		testbed.Check(t, found[name], "difftest_test.go lists %s, which is no program", name)
	}
	least := 120
	testbed.Check(t, len(found) >= least, "there are %d programs, at least %d are wanted", len(found), least)
}

// expected is a difference: the reason, the aspects that differ, and the programs. An aspect with a question mark does not differ each time, since
// ipykernel does not do the same each time.
type expected struct{ reason, aspects, programs string }

// known lists every program in which our kernel differs from ipykernel.
var known = []expected{
	{
		"ipykernel reports the error of a last value that cannot be shown as NoneType.", "error", `
		display/image-missing-file value/repr-raises value/repr-html-raises value/repr-mimebundle-raises value/repr-returns-a-number
		value/ipython-display-raises`,
	},
	{"The same, and the middle of a very long traceback is left out.", "error traceback", "error/recursion-in-repr"},
	{"An interrupt also ends a cell that awaits something and computes.", "status error traceback stdout", "async/interrupt-in-an-async-cell-that-blocks"},
	{"Code that ends early has the error of a script, which says what is missing.", "error traceback", "error/unclosed error/unterminated-triple"},
	{"A breakpoint asks for input, which there is none of. ipykernel leaves it out.", "status error traceback stdout", "magic/breakpoint"},
	{"There is no editor.", "status error stdout stderr", "magic/edit"},
	{"There is no notebook.", "stdout displays", "magic/autosave"},
	{"%clear clears the output of the cell; there is no terminal.", "clears", "magic/clear"},
	{"A page is printed where the code asks for it. ipykernel sends the last one with its reply.", "stdout", "pager/several"},
	{"The file of the profile is printed before the page.", "stdout", "magic/prun-pager"},
	{"%store is loaded when it is first used.", "stdout", "magic/load-ext-twice"},
	{"Parts of ipykernel that are configured are not there.", "stdout", "magic/config-classes"},
	{"The kernel has fewer parts.", "displays", "shell/shell-kernel"},
	{"A cell is compiled once less, so what that prints comes once less.", "stdout", "shell/autocall-and-quotes"},
	{"The same.", "stderr", "text/is-with-a-literal"},
	{"ipykernel publishes an error whose text cannot be made beside the error of making it.", "stderr", "error/error-whose-str-raises"},
	{"The middle of a very long traceback is left out.", "traceback", "error/recursion"},
	{"A hook that prints comes before the value that it returns.", "order", "display/own-pub-hook"},
	{"The kernel's own magics say what they do here.", "stdout", "magic/quickref magic/magic"},
	{
		"An exit ends the execution with its code; it is no error.", "status error traceback", `
		error/system-exit error/system-exit-none error/system-exit-in-a-function value/repr-exits`,
	},
	{"The same. The text of the exit is printed, as python prints it.", "status error traceback stderr", "error/system-exit-text"},
	{"The same. ipykernel prints a hint.", "status error traceback", "library/argparse"},
	{"The same, with %run.", "status stderr", "magic/run-exit"},
	{"The same. ipykernel ends, and forgets the code.", "status", "error/exit-with-code"},
	{"No client shows the input that the kernel suggests next.", "next", "magic/load magic/loadpy-lines shell/recall shell/write-payload"},
	{"asyncio.run works in a cell, as in a script.", "status error traceback displays", "async/asyncio-run"},
	{"Output before os._exit is not lost: it often explains the exit. A thread of ipykernel sends it at times (TestKernelEnds has ours).", "stdout?", "error/os-exit"},
	{"What a thread prints after the end of the execution that started it is dropped.", "stdout", "process/thread-prints-later"},
	{"The next execution prints as usual, even if one replaced sys.stdout.", "stdout", "text/stdout-replaced-for-good"},
	{"A lone surrogate is escaped, as on Python's stderr.", "stdout", "text/surrogates"},
	{"The encoding is called utf-8, as in a script.", "stdout", "text/stdout-attributes"},
	{"The error has the words of Python's own streams.", "error traceback", "text/write-bytes-is-an-error"},
	{"There are no arguments, so that argument parsers work.", "displays", "shell/argv"},
	{"The working directory comes first in the search path.", "displays", "shell/path"},
	{"ipykernel's own variable JPY_PARENT_PID does not exist.", "displays", "shell/environ"},
}

// since312 lists those that are there since Python 3.12, which warns of more.
var since312 = []expected{
	{"A cell is compiled once less, so what that prints comes once less.", "stderr", "text/invalid-escape"},
	{"Our kernel handles its threads in a fork, so Python's warning is left out.", "stderr", "process/fork"},
}

// differences returns the aspects that are listed for each program, with a Python 3 of this minor version. An error means that a program is
// listed twice.
func differences(minor int) (map[string][]string, error) {
	all := known
	if minor >= 12 {
		all = slices.Concat(known, since312)
	}
	listed := map[string][]string{}
	for _, k := range all {
		for _, name := range strings.Fields(k.programs) {
			if listed[name] != nil {
				return nil, fmt.Errorf("%s is listed twice", name)
			}
			listed[name] = strings.Fields(k.aspects)
		}
	}
	return listed, nil
}

// verdicts compares the differences of a program with those that are listed for it, and returns a sentence for each mismatch.
func verdicts(listed []string, found []difference) []string {
	var wrong []string
	for _, d := range found {
		if !slices.Contains(listed, d.aspect) && !slices.Contains(listed, d.aspect+"?") {
			wrong = append(wrong, fmt.Sprintf("%s differs (-ipykernel +ours):\n%s", d.aspect, d.diff()))
		}
	}
	for _, aspect := range listed {
		if !strings.HasSuffix(aspect, "?") && !slices.ContainsFunc(found, func(d difference) bool { return d.aspect == aspect }) {
			wrong = append(wrong, aspect+" does not differ any more: remove it from difftest_test.go")
		}
	}
	return wrong
}

// program is a series of cells that run one after the other in a fresh namespace.
type program struct {
	Name  string   `json:"-"`
	Cells []string `json:"cells"`
	// Settle: its output bypasses Python's streams (child processes, C code). ipykernel shows it a little later, in any order.
	Settle bool `json:"settle"`
	// Restart: it leaves the kernel in a state that other programs would notice.
	Restart bool `json:"restart"`
	Seconds int  `json:"seconds"` // limit of a cell
}

// cellSeconds is far more than any cell takes on a busy machine.
const cellSeconds = 30

// readPrograms reads the programs of a file. `# %% name` begins a program, with its options after the name; `# %%` begins its next cell.
func readPrograms(t *testing.T, path string) []program {
	t.Helper()
	file, err := os.Open(path)
	testbed.Must(t, err)
	defer func() { _ = file.Close() }()
	var programs []program
	subject := strings.TrimSuffix(filepath.Base(path), ".ipy")
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, "# %%"); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				p := program{Name: subject + "/" + words[0], Seconds: cellSeconds}
				for _, option := range words[1:] {
					switch option {
					case "settle":
						p.Settle = true
					case "restart":
						p.Restart = true
					default:
						t.Fatalf("%s: %s: unknown option %q", path, p.Name, option)
					}
				}
				if slices.ContainsFunc(programs, func(q program) bool { return q.Name == p.Name }) {
					t.Fatalf("%s: there are two programs %s", path, p.Name)
				}
				programs = append(programs, p)
			}
			if last := len(programs) - 1; last >= 0 {
				programs[last].Cells = append(programs[last].Cells, "")
			}
			continue
		}
		if len(programs) == 0 {
			continue // comments at the beginning of the file
		}
		p := &programs[len(programs)-1]
		p.Cells[len(p.Cells)-1] += line + "\n"
	}
	testbed.Must(t, lines.Err())
	for i := range programs {
		for j, code := range programs[i].Cells {
			programs[i].Cells[j] = strings.TrimRight(code, "\n")
		}
	}
	return programs
}

// shown is a displayed value, or the order to clear what is shown.
type shown struct {
	Number   int               // of the value in its execution; an update has the number of what it replaces
	Data     map[string]string // by MIME type
	Metadata string            // JSON; empty: none
	Clear    string            // "now" or "wait": no value, but clear_output
}

// part is output, and what was shown after it.
type part struct {
	Stdout, Stderr string
	Redacted       *shown // nil in the last part
}

// cell is what a caller sees of one cell.
type cell struct {
	Status    string // ok, error, died, or exit and a code
	Error     string // name and value
	Traceback string
	Count     int
	Parts     []part
	Next      string // the input that the kernel suggests next
}

// last returns the part to which output is added.
func (c *cell) last() *part {
	if len(c.Parts) == 0 {
		c.Parts = append(c.Parts, part{})
	}
	return &c.Parts[len(c.Parts)-1]
}

// show ends a part.
func (c *cell) show(s shown) {
	c.last().Redacted = &s
	c.Parts = append(c.Parts, part{})
}

// Aspects are what is compared. Each is a function of a cell; order is compared only if everything else that is shown is equal.
var aspects = []struct {
	name string
	text func(cell) string
}{
	{"status", func(c cell) string { return c.Status }},
	{"error", func(c cell) string { return c.Error }},
	{"traceback", func(c cell) string { return c.Traceback }},
	{"count", func(c cell) string { return fmt.Sprint(c.Count) }},
	{"stdout", func(c cell) string { return c.text(func(p part) string { return p.Stdout }) }},
	{"stderr", func(c cell) string { return c.text(func(p part) string { return p.Stderr }) }},
	{"displays", func(c cell) string { return c.text(func(p part) string { return p.Redacted.display() }) }},
	{"metadata", func(c cell) string { return c.text(func(p part) string { return p.Redacted.metadata() }) }},
	{"clears", func(c cell) string { return c.text(func(p part) string { return p.Redacted.clear() }) }},
	{"next", func(c cell) string { return c.Next }},
}

func (c cell) text(of func(part) string) string {
	var b strings.Builder
	for _, p := range c.Parts {
		b.WriteString(of(p))
	}
	return b.String()
}

func (s *shown) display() string {
	if s == nil || s.Clear != "" {
		return ""
	}
	var b strings.Builder
	for _, mime := range slices.Sorted(maps.Keys(s.Data)) {
		fmt.Fprintf(&b, "%d %s: %s\n", s.Number, mime, s.Data[mime])
	}
	return b.String()
}

func (s *shown) metadata() string {
	if s == nil || s.Metadata == "" {
		return ""
	}
	return fmt.Sprintf("%d: %s\n", s.Number, s.Metadata)
}

func (s *shown) clear() string {
	if s == nil || s.Clear == "" {
		return ""
	}
	return s.Clear + "\n"
}

// order describes all output in its order.
func (c cell) order() string {
	return c.text(func(p part) string {
		if p == (part{}) {
			return ""
		}
		text := fmt.Sprintf("stdout %q\nstderr %q\n", p.Stdout, p.Stderr)
		if p.Redacted != nil {
			text += fmt.Sprintf("display %s clear %s\n", p.Redacted.display(), p.Redacted.Clear)
		}
		return text
	})
}

// difference is an aspect in which two runs of a program differ.
type difference struct {
	aspect       string
	ours, theirs string
}

// diff describes the difference.
func (d difference) diff() string { return cmp.Diff(d.theirs, d.ours) }

// compare lists the aspects in which ours and theirs differ, in the order of aspects.
func compare(ours, theirs []cell) []difference {
	var found []difference
	each := func(name string, text func(cell) string) {
		a, b := render(ours, text), render(theirs, text)
		if a != b {
			found = append(found, difference{name, a, b})
		}
	}
	for _, aspect := range aspects {
		each(aspect.name, aspect.text)
	}
	seen := func(d difference) bool {
		return slices.Contains([]string{"stdout", "stderr", "displays", "clears"}, d.aspect)
	}
	if !slices.ContainsFunc(found, seen) {
		each("order", cell.order)
	}
	return found
}

// render describes an aspect of all cells.
func render(cells []cell, text func(cell) string) string {
	var b strings.Builder
	for i, c := range cells {
		fmt.Fprintf(&b, "cell %d: %s\n", i+1, text(c))
	}
	return b.String()
}

// finish normalises the output of a cell. settle: all of it comes first, with its lines sorted.
func (c *cell) finish(dir string, settle bool) {
	for i := range c.Parts {
		p := &c.Parts[i]
		p.Stdout, p.Stderr = normal(p.Stdout, dir), normal(p.Stderr, dir)
	}
	if !settle || len(c.Parts) == 0 {
		return
	}
	out, err := c.text(func(p part) string { return p.Stdout }), c.text(func(p part) string { return p.Stderr })
	for i := range c.Parts {
		c.Parts[i].Stdout, c.Parts[i].Stderr = "", ""
	}
	c.Parts[0].Stdout, c.Parts[0].Stderr = sortLines(out), sortLines(err)
}

// replacements make text comparable that differs from run to run.
var replacements = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`), ""},                                                          // colours
	{regexp.MustCompile(`\b0x[0-9a-f]{6,}`), "0xADDRESS"},                                                      // addresses
	{regexp.MustCompile(`(\b|_)[0-9a-f]{32}\b`), "HEX32"},                                                      // identifiers of widgets, figures and maps
	{regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "UUID"},                              // of Bokeh's documents
	{regexp.MustCompile(`[^\s"'<]*/ipykernel_\d+/\d+\.py`), "CELL.py"},                                         // the file of a cell
	{regexp.MustCompile(`\bat [0-9a-f]{8,}\b`), "at ADDRESS"},                                                  // addresses without 0x
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?`), "DATE"},                                  // in pictures
	{regexp.MustCompile(`(?m)^ +\d+(/\d+)?( +\d+\.\d{3}){4}|\d+\.\d{3} seconds`), "PROFILE"},                   // %prun
	{regexp.MustCompile(`\d+(\.\d+)?(e\+\d+)? ?(ns|μs|µs|us|ms|s|min)\b`), "TIME"},                             // %time, %timeit
	{regexp.MustCompile(`(?m)^(Compiler|Parser) *: TIME\n`), ""},                                               // %time, if it took long
	{regexp.MustCompile(`\d+ loops? each`), "N loops each"},                                                    // %timeit
	{regexp.MustCompile(`object at 0xADDRESS`), "object at ADDRESS"},                                           // the same, in one word
	{regexp.MustCompile(`\[\d+\.\d\d[a-z]*/s\]|\d+(\.\d+)?(it|B)/s|\d\d:\d\d(<\d\d:\d\d)?, +TIME/it`), "RATE"}, // progress bars
}

// normal normalises text. dir is the folder that has the workspace, the home directory and the temporary files of the kernel.
func normal(text, dir string) string {
	text = strings.ReplaceAll(text, dir, "DIR")
	for _, r := range replacements {
		text = r.pattern.ReplaceAllString(text, r.with)
	}
	return text
}

// hidden matches the first line of a traceback's part that shows code of a kernel, which no caller's code is.
var hidden = regexp.MustCompile(`^(File |~?/?)[^\n]*(/ipykernel/|DIR/run/)[^\n]*\.py`)

// normalTraceback normalises a traceback and leaves out the frames of the kernels.
func normalTraceback(parts []string, dir string) string {
	var kept []string
	for _, part := range parts {
		if part = strings.TrimRight(normal(part, dir), "\n"); !hidden.MatchString(part) {
			kept = append(kept, part)
		}
	}
	return strings.Join(slices.Compact(kept), "\n") // frames of a recursion are equal; our kernel leaves out most of them
}

// normalValue normalises one representation of a displayed value: pictures without newlines, objects as compact JSON.
func normalValue(mime, value, dir string) string {
	if strings.HasPrefix(mime, "image/") && mime != "image/svg+xml" || mime == "application/pdf" {
		return strings.Join(strings.Fields(value), "")
	}
	var object any
	if strings.HasSuffix(mime, "json") && json.Unmarshal([]byte(value), &object) == nil {
		raw, err := json.Marshal(object)
		if err == nil {
			value = string(raw)
		}
	}
	return normal(value, dir)
}

// sortLines sorts the lines of a text.
func sortLines(text string) string {
	lines := strings.SplitAfter(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// normalMetadata normalises the metadata of a bundle.
func normalMetadata(metadata map[string]any) string {
	if len(metadata) == 0 {
		return ""
	}
	raw, err := json.Marshal(metadata)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
