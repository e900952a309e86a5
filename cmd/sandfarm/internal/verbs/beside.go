package verbs

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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
	if name == "-" || f.sandbox != "" || f.lang != "" && f.lang != "python" || f.lang == "" && languageOf(name) != "" {
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
