package verbs

import (
	_ "embed" // for autoload_modules.txt
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// Autoload are the names of files that other programs of one machine load or run by name. A sandbox chooses the names of its files: saving
// one under such a name unasked would let its code out of the sandbox, at the next `make` or `git status` in that directory. They do not
// change after NewAutoload.
type Autoload struct {
	system string          // a GOOS
	tools  map[string]bool // names of programs on the PATH, in lower case, on Windows without their extension
}

// NewAutoload reads the names of the programs on searchPath, a PATH, for a system, a GOOS. It skips relative directories: files in the
// current directory are the ones being saved.
func NewAutoload(system, searchPath string) *Autoload {
	n := &Autoload{system: system, tools: map[string]bool{}}
	for _, dir := range filepath.SplitList(searchPath) {
		if !filepath.IsAbs(dir) {
			continue
		}
		entries, _ := os.ReadDir(dir) // an unreadable directory has no programs to run
		for _, entry := range entries {
			if !entry.IsDir() {
				n.tools[n.command(strings.ToLower(entry.Name()))] = true
			}
		}
	}
	return n
}

// windowsPrograms are extensions that Windows runs without being asked for them.
var windowsPrograms = []string{".exe", ".com", ".bat", ".cmd", ".ps1", ".vbs", ".vbe", ".js", ".jse", ".wsf", ".wsh", ".msc", ".lnk"}

// command is the name by which a file is run: on Windows without its extension.
func (n *Autoload) command(name string) string {
	if n.system == "windows" {
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
	{"bsdmakefile", "make runs it"},
	{"justfile", "just runs it"},
	{"rakefile", "rake runs it"},
	{"rakefile.rb", "rake runs it"},
	{"taskfile*.yml", "task runs it"},
	{"taskfile*.yaml", "task runs it"},
	{"cmakelists.txt", "cmake runs it"},
	{"build.gradle*", "gradle runs it"},
	{"dockerfile", "docker build runs it"},
	{"docker-compose*.yml", "docker compose runs it"},
	{"docker-compose*.yaml", "docker compose runs it"},
	{"compose*.yml", "docker compose runs it"},
	{"compose*.yaml", "docker compose runs it"},
	{"vagrantfile", "vagrant runs it"},
	{"tiltfile", "tilt runs it"},
	{"ansible.cfg", "ansible loads what it names"},
	{"mise.toml", "mise loads it"},
	{"shell.nix", "nix-shell runs it"},
	{"flake.nix", "nix runs it"},
	{"claude.md", "coding agents follow it"},
	{"claude.local.md", "coding agents follow it"},
	{"agents.md", "coding agents follow it"},
	{"agents.override.md", "coding agents follow it"},
	{"gemini.md", "coding agents follow it"},
	{"qwen.md", "coding agents follow it"},
	{"conftest.py", "pytest runs it"},
	{"pytest.ini", "pytest loads what it names"},
	{"pytest.toml", "pytest loads what it names"},
	{"tox.ini", "pytest loads what it names"},
	{"setup.cfg", "pytest loads what it names"},
	{"pyproject.toml", "pytest loads what it names"},
	{"uv.toml", "uv loads what it names"},
	{"setup.py", "pip runs it"},
	{"noxfile.py", "nox runs it"},
	{"package.json", "npm runs what it names"},
	{"*.config.[jt]s", "tools for JavaScript run it"},
	{"*.config.[cm][jt]s", "tools for JavaScript run it"},
	{"gulpfile.*", "gulp runs it"},
	{"gruntfile.*", "grunt runs it"},
	{"nodemon.json", "nodemon runs what it names"},
	{"karma.conf.*", "karma runs it"},
	{"cdk.json", "cdk runs what it names"},
	{"bunfig.toml", "bun loads what it names"},
	{"deno.json", "deno runs what it names"},
	{"deno.jsonc", "deno runs what it names"},
	{"composer.json", "composer runs what it names"},
	{"cargo.toml", "cargo runs what it names"},
	{"build.rs", "cargo runs it"},
	{"rust-toolchain", "cargo runs what it names"},
	{"rust-toolchain.toml", "cargo runs what it names"},
	{"gemfile", "bundler runs it"},
	{"gems.rb", "bundler runs it"},
	{"config.ru", "rackup runs it"},
	{"procfile", "foreman runs what it names"},
	{"containerfile", "podman build runs it"},
	{"sconstruct", "scons runs it"},
	{"sconscript", "scons runs it"},
	{"snakefile", "snakemake runs it"},
	{"meson.build", "meson runs it"},
	{"build", "bazel runs it"},
	{"build.bazel", "bazel runs it"},
	{"module.bazel", "bazel runs it"},
	{"workspace", "bazel runs it"},
	{"workspace.bazel", "bazel runs it"},
	{"earthfile", "earthly runs it"},
	{"jenkinsfile", "jenkins runs it"},
	{"podfile", "pod runs it"},
	{"brewfile", "brew runs it"},
	{"cmakepresets.json", "cmake runs what it names"},
	{"cmakeuserpresets.json", "cmake runs what it names"},
	{"directory.build.props", "dotnet builds load it"},
	{"directory.build.targets", "dotnet builds run it"},
	{"nuget.config", "dotnet loads what it names"},
	{"global.json", "dotnet loads what it names"},
	{"conanfile.py", "conan runs it"},
	{"setup.hs", "cabal runs it"},
	{"docker-bake.*", "docker buildx bake runs what it names"},
	{"settings.gradle*", "gradle runs it"},
	{"gradle.properties", "gradle loads what it names"},
	{"gradlew*", "builds run it"},
	{"mvnw*", "builds run it"},
	{"pom.xml", "maven runs what it names"},
	{"build.xml", "ant runs it"},
	{"build.sbt", "sbt runs it"},
	{"mix.exs", "mix runs it"},
	{"package.swift", "swift runs it"},
	{"default.nix", "nix-build runs it"},
	{"lefthook.yml", "git runs what it names"},
	{"lefthook.yaml", "git runs what it names"},
	{"lefthook.toml", "git runs what it names"},
	{"lefthook.json", "git runs what it names"},
	{"lefthook-local.*", "git runs what it names"},
	{"fabfile.py", "fab runs it"},
	{"tasks.py", "invoke runs it"},
	{"dodo.py", "doit runs it"},
	{"pylintrc", "pylint loads what it names"},
	{"mypy.ini", "mypy loads what it names"},
	{"mkdocs.yml", "mkdocs runs what it names"},
	{"book.toml", "mdbook runs what it names"},
	{"agent.md", "coding agents follow it"},
	{"warp.md", "coding agents follow it"},
	{"opencode.json", "coding agents load what it names"},
	{"opencode.jsonc", "coding agents load what it names"},
	{"head", "git takes its directory for a repository"},
	{"gunicorn.conf.py", "gunicorn runs it"},
	{"locustfile.py", "locust runs it"},
	{"tox.toml", "tox runs what it names"},
	{"pixi.toml", "pixi runs what it names"},
	{"hatch.toml", "hatch runs what it names"},
	{"jest.config.json", "jest runs what it names"},
	{"babel.config.json", "babel runs what it names"},
	{"nx.json", "nx runs what it names"},
	{"rebar.config", "rebar3 runs what it names"},
	{"project.clj", "lein runs it"},
	{"fastfile", "fastlane runs it"},
	{"guardfile", "guard runs it"},
	{"dangerfile", "danger runs it"},
	{"thorfile", "thor runs it"},
	{"desktop.ini", "Windows loads it"},
}

// importedAtStart are the modules that Python imports at every start, as a file or as a package.
var importedAtStart = []string{"sitecustomize", "usercustomize"}

// modules are the modules of Python's standard library, and of packages that many programs import: a script imports a file of that name that is
// in its own directory instead.
//
//go:embed autoload_modules.txt
var modules string

var importable = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	for name := range strings.FieldsSeq(modules) {
		out[name] = true
	}
	return out
})

// shadows reports whether Python would import a file in place of a module, by the elements of its name: json.py or json/__init__.py, and any
// compiled file, which it imports before the source beside it.
func shadows(elements []string) bool {
	last := len(elements) - 1
	extension := path.Ext(elements[last])
	switch extension {
	case ".pyc", ".so", ".pyd":
		return true
	case ".py", ".pyw":
	default:
		return false
	}
	stem := strings.TrimSuffix(elements[last], extension)
	if stem == "__init__" && last > 0 {
		stem = elements[last-1]
	}
	return importable()[stem]
}

// before are the ends of names that are loaded before others, when neither is named: require("./a") loads a before a.js before a.json before
// what is in a directory a, compilers take a.ts before a.js, and Python a package before a module.
var before = map[string][]string{
	"":             {".js", ".json", ".node", ".mjs", ".cjs", ".ts", ".tsx", ".jsx"},
	".js":          {".json", ".node", "/index.js", "/package.json"},
	".json":        {".node", "/index.js", "/package.json"},
	".node":        {"/index.js", "/package.json"},
	".ts":          {".js", ".jsx", ".tsx"},
	".tsx":         {".js", ".jsx"},
	"/__init__.py": {".py"},
}

// comesBefore reports whether a new file would be loaded in place of one that is there. One that is there itself changes no order.
func comesBefore(in *os.Root, elements []string) bool {
	if in == nil {
		return false
	}
	exists := func(name string) bool {
		_, err := in.Lstat(name)
		return err == nil
	}
	name := path.Join(elements...)
	end := path.Ext(name)
	if path.Base(name) == "__init__.py" {
		end = "/__init__.py"
	}
	return !exists(name) && slices.ContainsFunc(before[end], func(other string) bool { return exists(strings.TrimSuffix(name, end) + other) })
}

// onTheWay says why a file must not be saved where its name leads. A directory of it may be a link to another one in here: the file would have another name than
// the one that is judged; a link that leads out is refused by in itself. Or one is git's, whatever it is called: git runs what its config and its hooks name.
func onTheWay(in *os.Root, elements []string) string {
	dir, last := in, len(elements)-1
	leave := func(next *os.Root) {
		if dir != in {
			_ = dir.Close()
		}
		dir = next
	}
	defer func() { leave(in) }()
	for i := range elements {
		if isRepository(dir) {
			return "git runs what files of its repository name"
		}
		info, err := dir.Lstat(elements[i])
		if i == last || err != nil {
			return ""
		}
		if info.Mode()&os.ModeSymlink != 0 {
			if _, err := in.Stat(path.Join(elements[:i+1]...)); err == nil {
				return "a symbolic link is on its way"
			}
			return ""
		}
		next, err := dir.OpenRoot(elements[i])
		if err != nil {
			return ""
		}
		leave(next)
	}
	return ""
}

// isRepository reports whether git takes a directory for its own.
func isRepository(dir *os.Root) bool {
	return !slices.ContainsFunc([]string{"HEAD", "objects", "refs"}, func(name string) bool {
		_, err := dir.Lstat(name)
		return err != nil
	})
}

// sameLetters are letters that a file system which ignores case may take for others, beside capitals: Makeﬁle for Makefile.
var sameLetters = strings.NewReplacer("ſ", "s", "ﬀ", "ff", "ﬁ", "fi", "ﬂ", "fl", "ﬃ", "ffi", "ﬄ", "ffl", "ﬅ", "st", "ﬆ", "st")

// Reason says why a file must not be saved unasked, such as "make runs it"; empty for other files. It ignores letter case and
// invisible characters, as some file systems do. On Windows it ignores what Windows ignores at the end of a name too: dots, spaces
// and a stream. The elements of a name are separated by slashes; in is the directory that it is relative to, nil if it does not exist.
func (n *Autoload) Reason(in *os.Root, name string) string {
	given := strings.Split(name, "/")
	if in != nil {
		if why := onTheWay(in, given); why != "" {
			return why
		}
	}
	name = sameLetters.Replace(strings.ToLower(strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, name)))
	elements := strings.Split(name, "/")
	for i, element := range elements {
		if n.system == "windows" {
			element, _, _ = strings.Cut(element, ":")
			element = strings.TrimRight(element, ". ")
			elements[i] = element
		}
		if strings.HasPrefix(element, ".") {
			return "it is hidden"
		}
		if element == "node_modules" {
			return "Node loads packages of that directory"
		}
		stem, _, _ := strings.Cut(element, ".")
		for _, module := range importedAtStart {
			if stem == module {
				return "Python runs it at every start"
			}
		}
	}
	base := elements[len(elements)-1]
	for _, file := range loadedBy {
		if matched, _ := path.Match(file.pattern, base); matched {
			return file.who
		}
	}
	if shadows(elements) || comesBefore(in, given) {
		return "Python or Node loads it in place of another file"
	}
	if n.system == "windows" {
		switch path.Ext(base) {
		case ".exe", ".com", ".bat", ".cmd", ".ps1", ".lnk":
			return "Windows runs it as a command"
		}
	}
	if n.tools[n.command(base)] {
		return "it has the name of a program on your PATH"
	}
	return ""
}
