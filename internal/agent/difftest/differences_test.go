package difftest_test

import (
	"fmt"
	"slices"
	"strings"
)

// expected is a difference: the reason, the aspects that differ, and the programs.
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
	{"Output before os._exit is not lost: it often explains the exit.", "stdout", "error/os-exit"},
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
