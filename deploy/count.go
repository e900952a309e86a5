package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// size is how much hand-written Go is in one room: lines with code on them, without blank lines, comments and generated files.
type size struct {
	files, lines         int // of the programs
	testFiles, testLines int // of tests and test support: see isTest
}

func (s *size) add(o size) {
	s.files, s.lines = s.files+o.files, s.lines+o.lines
	s.testFiles, s.testLines = s.testFiles+o.testFiles, s.testLines+o.testLines
}

// isTest says whether a file counts as test or test support: _test.go files, the folder bench, folders named testdata or testbed, and
// packages whose name ends in "test", such as storetest.
func isTest(file string) bool {
	return strings.HasSuffix(file, "_test.go") || slices.ContainsFunc(strings.Split(path.Dir(file), "/"), func(dir string) bool {
		return strings.HasSuffix(dir, "test") || dir == "testdata" || dir == "testbed" || dir == "bench"
	})
}

// room is the part of the tree that a file is counted in: its top folder, or the one below that in api, cmd, internal and worker.
func room(file string) string {
	parts := strings.Split(path.Dir(file), "/")
	if len(parts) > 1 && slices.Contains([]string{"api", "cmd", "internal", "worker"}, parts[0]) {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// lines counts the lines of a Go file that have code on them. A generated file has none.
func lines(text []byte) (n int, generated bool, err error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "", text, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil || ast.IsGenerated(parsed) {
		return 0, err == nil, err
	}
	var s scanner.Scanner
	file := files.AddFile("", -1, len(text))
	s.Init(file, text, nil, 0) // without comments
	last := 0                  // the last line that was counted
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return n, false, nil
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue // no semicolon is written there
		}
		first := file.Line(pos)
		end := first + strings.Count(literal, "\n")
		n += end - max(first-1, last)
		last = end
	}
}

// count writes a table of the Go files that git tracks, by room, then the numbers of settings and of words of the glossary.
func count(ctx context.Context, out io.Writer) error {
	names, err := exec.CommandContext(ctx, "git", "ls-files", "-z", "*.go").Output()
	if err != nil {
		return fmt.Errorf("list files: %w", err)
	}
	rooms, total := map[string]*size{}, &size{}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read file: %w", err)
		}
		n, generated, err := lines(text)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if generated {
			continue
		}
		of := size{files: 1, lines: n}
		if isTest(name) {
			of = size{testFiles: 1, testLines: n}
		}
		if rooms[room(name)] == nil {
			rooms[room(name)] = &size{}
		}
		rooms[room(name)].add(of)
		total.add(of)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "files\tlines\ttest files\ttest lines\t\troom")
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		r := rooms[name]
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t\t%s\n", r.files, r.lines, r.testFiles, r.testLines, name)
	}
	fmt.Fprintf(table, "%d\t%d\t%d\t%d\t\t%s\n", total.files, total.lines, total.testFiles, total.testLines, "total")
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	for _, page := range []struct{ what, file, row string }{
		{"settings", "docs/configuration.md", "(?m)^\\| `"},
		{"rows of the glossary", "docs/glossary.md", `(?m)^\| \*\*`},
	} {
		text, err := os.ReadFile(page.file)
		if err != nil {
			return fmt.Errorf("count %s: %w", page.what, err)
		}
		fmt.Fprintf(out, "%d %s\n", len(regexp.MustCompile(page.row).FindAll(bytes.TrimSpace(text), -1)), page.what)
	}
	return nil
}
