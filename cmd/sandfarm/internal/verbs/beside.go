package verbs

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// imported matches a line that imports a module, whose first name is the group.
var imported = regexp.MustCompile(`(?m)^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)`)

// builtIn are the modules that are part of the interpreter of the farm's images (sys.builtin_module_names of CPython 3.13), without those that are
// private: no file is imported in their place.
var builtIn = strings.Fields(`array atexit binascii builtins cmath errno faulthandler fcntl gc grp itertools marshal math posix pwd pyexpat select sys syslog time
unicodedata zlib`)

// beside lists the modules that Python code imports, that are files or packages beside it on this machine, and that are not sent along: in
// the sandbox they are missing, or come from somebody else's package of that name.
func beside(name, code string, inputs []input) (files []string) {
	for _, found := range imported.FindAllStringSubmatch(code, -1) {
		if slices.Contains(builtIn, found[1]) {
			continue
		}
		for _, file := range []string{found[1] + ".py", filepath.Join(found[1], "__init__.py")} {
			file = filepath.Join(filepath.Dir(name), file)
			if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || filepath.Clean(file) == filepath.Clean(name) {
				continue
			}
			sent := slices.ContainsFunc(inputs, func(in input) bool {
				to := path.Clean(in.to)
				return to == found[1]+".py" || strings.HasPrefix(to, found[1]+"/")
			})
			if !sent && !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	return files
}

// checkBeside refuses to have packages installed for modules that are beside the code, and says of others that they are not sent.
func (a *app) checkBeside(name, code string, inputs []input, f *runFlags) error {
	if name == "-" || f.sandbox != "" || !f.isPython() {
		return nil
	}
	files := beside(name, code, inputs)
	if len(files) == 0 {
		return nil
	}
	send := make([]string, len(files))
	for i, file := range files {
		send[i] = "--file " + quoteOne(file)
		if base := filepath.Base(filepath.Dir(file)); filepath.Base(file) == "__init__.py" {
			send[i] += ":" + quoteOne(base+"/")
		}
	}
	if f.autoInstall {
		return usagef("%s imports %s, beside it here: --auto-install would look for a package of that name. Send it along: %s", name, strings.Join(files, ", "), strings.Join(send, " "))
	}
	fmt.Fprintf(a.Err, "sandfarm: %s imports %s, beside it here, which is not sent: %s sends it\n", name, strings.Join(files, ", "), strings.Join(send, " "))
	return nil
}

var (
	// lacksModule and lacksFile match the values of errors of Python code about what is not in the sandbox.
	lacksModule = regexp.MustCompile(`^No module named '(\w+)'$`)
	lacksFile   = regexp.MustCompile(`No such file or directory: '(?:/workspace/)?([^/'][^']*)'$`)
	// notedLack matches the notes of the farm about such errors.
	notedLack = regexp.MustCompile(`^The (?:module|workspace has no file) `)
)

// unsent is a note on a module or a file that the code of a run lacked in the sandbox and that is on this machine, and how it is sent along. ok
// reports whether there is such a thing, so that the farm's own note does not apply; checkBeside may have told of it before the run. The code chooses
// the names that it lacks, and is to get no one to send it a .env: hidden files are not told of.
func unsent(name string, e *wire.CodeError, f *runFlags) (note string, ok bool) {
	if e == nil {
		return "", false
	}
	var places []string // first where the path leads from here, as it would for the code
	to, dir := "", filepath.Dir(name)
	if found := lacksModule.FindStringSubmatch(e.Value); found != nil && e.Name == "ModuleNotFoundError" {
		places = []string{filepath.Join(dir, found[1]+".py"), filepath.Join(dir, found[1])}
	} else if found := lacksFile.FindStringSubmatch(e.Value); found != nil && e.Name == "FileNotFoundError" && filepath.IsLocal(found[1]) && !farm.HiddenPath(found[1]) {
		places = []string{filepath.Clean(found[1]), filepath.Join(dir, found[1])}
		if to = path.Dir(found[1]); to == "." {
			to = ""
		} else {
			to = ":" + quoteOne(to+"/")
		}
	}
	for _, place := range places {
		info, err := os.Stat(place)
		switch {
		case err != nil:
			continue
		case e.Name == "ModuleNotFoundError" && name != "-" && f.sandbox == "":
			return "", true
		case info.IsDir():
			return fmt.Sprintf("the folder %s is on this machine and not in the sandbox: copy it into one (sandfarm cp -r %s ID:) and run the code there (--sandbox ID)", place, quoteOne(place)), true
		}
		return fmt.Sprintf("%s is on this machine and not in the sandbox: --file %s%s sends it", place, quoteOne(place), to), true
	}
	return "", false
}

// isPython reports whether the code is Python, once its language is known.
func (f *runFlags) isPython() bool { return f.lang == "python" || f.lang == "" }

// maxCopied is the largest script that goes along as a file: a request has its code, too.
const maxCopied = 4 << 20

// asFile returns the name in the workspace that Python code is from, and the inputs with its file, which child processes of the code may read
// (multiprocessing). A sandbox that has such a file keeps it. Code of stdin and of other languages has no name.
func asFile(ctx context.Context, c *client.Client, name string, inputs []input, f *runFlags) (string, []input) {
	info, err := os.Stat(name)
	if name == "-" || !f.isPython() || err != nil || !info.Mode().IsRegular() || !utf8.ValidString(name) {
		return "", inputs
	}
	filename := filepath.Base(name)
	there := info.Size() > maxCopied || slices.ContainsFunc(inputs, func(in input) bool { return path.Clean(in.to) == filename })
	if !there && f.sandbox != "" {
		_, err := c.Files(f.sandbox).Stat(ctx, filename)
		there = client.CodeOf(err) != "not_found" // the execution reports other errors
	}
	if !there {
		inputs = append(inputs, input{from: name, to: filename})
	}
	return filename, inputs
}
