package difftest_test

import (
	"fmt"
	"slices"
	"strings"
)

// known lists every program in which our kernel differs from ipykernel: the reason, the aspects that differ, and the programs.
var known = []struct{ reason, aspects, programs string }{
	{
		"What goes to the pager is dropped.", "stdout", `
		magic/quickref magic/magic magic/prun-pager magic/psearch magic/less magic/man-missing
		pager/question pager/question-first pager/two-questions pager/of-an-instance pager/of-a-method pager/of-a-variable
		pager/of-a-magic pager/wildcard pager/pinfo pager/pinfo2 pager/pdoc pager/psource pager/page pager/pycat pager/several
		pager/in-an-error pager/page-function pager/question-alone`,
	},
	{
		"Errors that IPython shows beside the cell's own are dropped.", "stderr", `
		display/image-missing-file display/display-raises error/error-whose-str-raises magic/capture-error magic/run-error magic/tb
		magic/tb-none shell/run-cell-error shell/run-cell-syntax-error shell/event-raises shell/event-raises-before
		shell/showtraceback shell/showsyntaxerror`,
	},
	{"The traceback of a RecursionError is dropped.", "traceback", "error/recursion error/recursion-in-repr"},
	{
		"The metadata of displayed values is dropped.", "metadata", `
		display/raw-metadata display/metadata display/html-and-friends display/json-options display/image-size
		display/publish-display-data library/matplotlib-retina value/repr-bytes-metadata value/repr-mimebundle-metadata`,
	},
	{
		"clear_output does nothing.", "clears", `
		display/clear-output display/clear-output-wait display/clear-output-with-displays library/matplotlib-loop
		library/ipywidgets-interact`,
	},
	{"Hooks of the display publisher are not called.", "stdout", "display/own-pub-hook"},
	{
		"The shell's class is Shell, so libraries do not know that they run in a notebook.", "displays",
		"library/rich-console library/rich-pretty library/plotly shell/shell-class",
	},
	{"The same.", "stdout", "library/plotly-show magic/config-classes"},
	{"The same.", "stdout displays", "library/rich"},
	{"The same.", "stdout displays clears", "library/rich-progress"},
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
	{"Output before os._exit is not lost: it often explains the exit.", "stdout", "error/os-exit"},
	{"What a thread prints after the end of the execution that started it is dropped.", "stdout", "process/thread-prints-later"},
	{"The next execution prints as usual, even if one replaced sys.stdout.", "stdout", "text/stdout-replaced-for-good"},
	{"A lone surrogate is escaped, as on Python's stderr.", "stdout", "text/surrogates"},
	{"The encoding is called utf-8, as in a script.", "stdout", "text/stdout-attributes"},
	{"The error has the words of Python's own streams.", "error traceback", "text/write-bytes-is-an-error"},
	{"Our kernel handles its threads in a fork, so Python's warning is left out.", "stderr", "process/fork"},
	{"There are no arguments, so that argument parsers work.", "displays", "shell/argv"},
	{"The working directory comes first in the search path.", "displays", "shell/path"},
	{"ipykernel's own variable JPY_PARENT_PID does not exist.", "displays", "shell/environ"},
}

// differences returns the aspects that are listed for each program. An error means that a program is listed twice.
func differences() (map[string][]string, error) {
	listed := map[string][]string{}
	for _, k := range known {
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
		if !slices.Contains(listed, d.aspect) {
			wrong = append(wrong, fmt.Sprintf("%s differs (-ipykernel +ours):\n%s", d.aspect, d.diff()))
		}
	}
	for _, aspect := range listed {
		if !slices.ContainsFunc(found, func(d difference) bool { return d.aspect == aspect }) {
			wrong = append(wrong, aspect+" does not differ any more: remove it from differences_test.go")
		}
	}
	return wrong
}
