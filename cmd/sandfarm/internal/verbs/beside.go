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

	"github.com/sandfarm/sandfarm/client"
)

// imported matches a line that imports a module, whose first name is the group.
var imported = regexp.MustCompile(`(?m)^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)`)

// beside lists the modules that Python code imports, that are files or packages beside it on this machine, and that are not sent along: in
// the sandbox they are missing, or come from somebody else's package of that name.
func beside(name, code string, inputs []input) (files []string) {
	for _, found := range imported.FindAllStringSubmatch(code, -1) {
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
	if name == "-" || f.sandbox != "" || !isPython(name, f.lang) {
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

// isPython reports whether the code is Python.
func isPython(name, lang string) bool {
	return lang == "python" || lang == "" && languageOf(name) == ""
}

// maxCopied is the largest script that goes along as a file: a request has its code, too.
const maxCopied = 4 << 20

// asFile returns the name in the workspace that Python code is from, and the inputs with its file, which child processes of the code may read
// (multiprocessing). A sandbox that has such a file keeps it. Code of stdin and of other languages has no name.
func asFile(ctx context.Context, c *client.Client, name string, inputs []input, f *runFlags) (string, []input) {
	info, err := os.Stat(name)
	if name == "-" || !isPython(name, f.lang) || err != nil || !info.Mode().IsRegular() || !utf8.ValidString(name) {
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
