package verbs

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"
)

// autoload knows the names of files that other programs load or run by name: saving one that a sandbox chose would let
// code out of the sandbox, at the next `make` or `git status` in that directory.
type autoload struct {
	system string          // a GOOS
	tools  map[string]bool // names of programs on the PATH, in lower case, on Windows without their extension
}

// newAutoload reads the names of programs on a PATH. Relative directories of it are left out: what lies in the current
// directory is what is being saved.
func newAutoload(system, searchPath string) *autoload {
	l := &autoload{system: system, tools: map[string]bool{}}
	for _, dir := range filepath.SplitList(searchPath) {
		if !filepath.IsAbs(dir) {
			continue
		}
		entries, _ := os.ReadDir(dir) // what cannot be read runs nothing either
		for _, entry := range entries {
			if !entry.IsDir() {
				l.tools[l.command(strings.ToLower(entry.Name()))] = true
			}
		}
	}
	return l
}

// windowsPrograms are extensions that Windows runs without being asked for them.
var windowsPrograms = []string{".exe", ".com", ".bat", ".cmd", ".ps1", ".vbs", ".vbe", ".js", ".jse", ".wsf", ".wsh", ".msc", ".lnk"}

// command is the name by which a file is run: on Windows without its extension.
func (l *autoload) command(name string) string {
	if l.system == "windows" {
		for _, extension := range windowsPrograms {
			if stem, ok := strings.CutSuffix(name, extension); ok {
				return stem
			}
		}
	}
	return name
}

// loadedBy matches names of files, in lower case, with who loads them.
var loadedBy = []struct{ pattern, who string }{
	{"makefile", "make runs it"},
	{"gnumakefile", "make runs it"},
	{"docker-compose*.yml", "docker compose runs it"},
	{"docker-compose*.yaml", "docker compose runs it"},
	{"compose*.yml", "docker compose runs it"},
	{"compose*.yaml", "docker compose runs it"},
	{"claude.md", "coding agents follow it"},
	{"agents.md", "coding agents follow it"},
	{"conftest.py", "pytest runs it"},
}

// importedAtStart are the modules that Python imports at every start, as a file or as a package.
var importedAtStart = []string{"sitecustomize", "usercustomize"}

// reason says why a file must not be saved unasked, such as "make runs it"; empty for the others. Letter case does not
// count, and invisible characters neither: some file systems ignore both.
func (l *autoload) reason(name string) string {
	name = strings.ToLower(strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, name))
	for element := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(element, ".") {
			return "it is hidden"
		}
		stem, _, _ := strings.Cut(element, ".")
		for _, module := range importedAtStart {
			if stem == module {
				return "Python runs it at every start"
			}
		}
	}
	base := path.Base(name)
	for _, file := range loadedBy {
		if matched, _ := path.Match(file.pattern, base); matched {
			return file.who
		}
	}
	if l.system == "windows" {
		switch path.Ext(base) {
		case ".exe", ".com", ".bat", ".cmd", ".ps1", ".lnk":
			return "Windows runs it as a command"
		}
	}
	if l.tools[l.command(base)] {
		return "it has the name of a program on your PATH"
	}
	return ""
}
