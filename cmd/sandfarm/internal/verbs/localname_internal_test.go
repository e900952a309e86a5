package verbs

import "testing"

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
