package verbs

import (
	"os"
	"path/filepath"
	"testing"
)

// tools is an autoload whose PATH has the programs mytool and report.exe.
func tools(t *testing.T, system string) *autoload {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"mytool", "report.exe"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	return newAutoload(system, dir+string(filepath.ListSeparator)+"."+string(filepath.ListSeparator)+filepath.Join(dir, "missing"))
}

func TestFilesThatOtherProgramsLoadAreNotSaved(t *testing.T) {
	t.Parallel()
	l := tools(t, "linux")
	for _, name := range []string{
		".env", ".git/config", "sub/.git/HEAD", "\u200c.git/config", "Makefile", "makefile", "MAKEFILE", "GNUmakefile", "deep/er/Makefile", "Make\u200dfile",
		"docker-compose.yml", "docker-compose.override.yaml", "compose.yml", "compose.prod.yaml", "Compose.YAML", "CLAUDE.md", "claude.md", "docs/AGENTS.md",
		"conftest.py", "tests/conftest.py", "sitecustomize.py", "usercustomize.py", "sitecustomize/__init__.py", "sitecustomize.cpython-313-x86_64-linux-gnu.so",
		"mytool", "bin/MyTool",
	} {
		if l.reason(name) == "" {
			t.Errorf("%q would be saved", name)
		}
	}
	for _, name := range []string{
		"plot.png", "a.b/c..d", "makefile.txt", "decompose.yml", "compose.json", "notes/claude.txt", "my_conftest.py", "mytool.csv", "mytool/data.csv", "folder",
		"report", "setup.exe", "conftest.pyx", "git~1",
	} {
		if why := l.reason(name); why != "" {
			t.Errorf("%q would not be saved: %s", name, why)
		}
	}
}

func TestWindowsRunsProgramsByExtension(t *testing.T) {
	t.Parallel()
	l := tools(t, "windows")
	for _, name := range []string{"setup.exe", "a/Git.BAT", "x.cmd", "x.com", "x.ps1", "report", "report.js", "mytool.vbs", "mytool"} {
		if l.reason(name) == "" {
			t.Errorf("%q would be saved", name)
		}
	}
	for _, name := range []string{"plot.js", "report.csv", "notes.txt"} {
		if why := l.reason(name); why != "" {
			t.Errorf("%q would not be saved: %s", name, why)
		}
	}
}

func TestLocalNames(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, linux, windows string }{
		{"a/b.txt", "a/b.txt", "a/b.txt"},
		{"/workspace/a.txt", "a.txt", "a.txt"},
		{"./a//b.txt", "a/b.txt", "a/b.txt"},
		{`a\b.txt`, `a\b.txt`, "a_b.txt"},
		{`..\..\evil.txt`, `..\..\evil.txt`, ".._.._evil.txt"},
		{`C:\evil.txt`, `C:\evil.txt`, "C__evil.txt"},
		{"a:b.txt", "a:b.txt", "a_b.txt"},
		{".git::$INDEX_ALLOCATION/config", ".git::$INDEX_ALLOCATION/config", ".git__$INDEX_ALLOCATION/config"},
		{`what?"<*>|.txt`, `what?"<*>|.txt`, "what______.txt"},
		{"CON", "CON", "_CON"},
		{"out/nul.txt", "out/nul.txt", "out/_nul.txt"},
		{"Com1 .tar.gz", "Com1 .tar.gz", "_Com1 .tar.gz"},
		{"console.txt", "console.txt", "console.txt"},
		{"Makefile.", "Makefile.", "Makefile_"},
		{"dir. /a", "dir. /a", "dir__/a"},
		{"GIT~1/config", "GIT~1/config", "GIT_1/config"},
		{"notes~.txt", "notes~.txt", "notes~.txt"},
		{"a\x1b[31m\n", "a_[31m_", "a_[31m_"},
		{"../a", "", ""},
		{"a/../../b", "", ""},
		{"/etc/passwd", "", ""},
		{"a/", "", ""},
		{".", "", ""},
		{"", "", ""},
	}
	for _, test := range tests {
		for system, want := range map[string]string{"linux": test.linux, "windows": test.windows} {
			got, err := localName(test.name, system)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("%s: localName(%q) = %q, %v; want %q", system, test.name, got, err, want)
			}
		}
	}
}
