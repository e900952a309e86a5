package install

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestRequirementsAreAccepted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]requirement{
		"numpy":                            {name: "numpy", bare: true},
		" Foo_Bar.baz ":                    {name: "foo-bar-baz", bare: true},
		"pandas>=2,<3":                     {name: "pandas"},
		"pandas >= 2, < 3":                 {name: "pandas"},
		"pandas==2.1.0":                    {name: "pandas", exact: "2.1.0"},
		"pandas == 2.1.*":                  {name: "pandas"},
		"requests[socks,security]":         {name: "requests"},
		"requests[socks]==2.0":             {name: "requests"},
		"torch==2.1+cpu":                   {name: "torch", exact: "2.1+cpu"},
		"a ~= 1.0; python_version < '3.9'": {name: "a"},
		`a; sys_platform == "win32" and python_version in "3.9 3.10"`: {name: "a"},
		"a (>=1)": {name: "a"},
	} {
		got := parseRequirement(farm.ManagerPip, text)
		if got.problem != "" || got.name != want.name || got.bare != want.bare || got.exact != want.exact {
			t.Errorf("%q: %+v", text, got)
		}
	}
	for text, name := range map[string]string{"left-pad": "left-pad", "@scope/pkg": "@scope/pkg", "lodash@^4.17.0": "lodash", "@a/b@latest": "@a/b", "x@>=1 <2": "x"} {
		if got := parseRequirement(farm.ManagerNpm, text); got.problem != "" || got.name != name {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestInvalidRequirementsAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "-r /etc/passwd", "--index-url=http://x", "-e .", "git+https://x/y", "../x", "/etc/passwd", ".", "./x", "six; rm -rf /", "six @ https://x/y.whl",
		"six\n--index-url=x", "six --hash=sha256:0", "a b", "six;", "six; os.system('x')", "$(id)", "`id`", "x" + strings.Repeat("y", maxRequirementBytes), "six==", "[x]", "six=1", "a==1 --pre",
		"x.whl/", "file:x", "ä",
	} {
		if got := parseRequirement(farm.ManagerPip, text); got.problem == "" {
			t.Errorf("%.60q is accepted as %+v", text, got)
		}
	}
	for _, text := range []string{"", "-g", "--registry=x", "git+ssh://x", "github:a/b", "a/b", "../x", "/x", "x@npm:y", "x@file:..", "x@http://y", "x\ny", "x@", "x;y", ".x"} {
		if got := parseRequirement(farm.ManagerNpm, text); got.problem == "" {
			t.Errorf("npm %q is accepted as %+v", text, got)
		}
	}
	if got := parseRequirement(farm.ManagerPip, "x"+strings.Repeat("y", maxRequirementBytes-1)); got.problem != "" {
		t.Errorf("a long name is refused: %s", got.problem)
	}
}
