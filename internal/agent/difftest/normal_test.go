package difftest_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

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
