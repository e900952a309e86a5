package verbs

import (
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

var errLeadsOut = errors.New("its name leads out of the directory, so it was not saved")

// localName turns the path of an artifact into a slash-separated path below a local directory. Characters and names that
// the local system (a GOOS) does not allow are replaced.
func localName(name, system string) (string, error) {
	name = strings.TrimPrefix(name, "/workspace/")
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || system == "windows" && strings.ContainsRune(`<>:"|?*\`, r) {
			return '_'
		}
		return r
	}, name)
	elements := strings.Split(name, "/")
	if name == "" || strings.HasSuffix(name, "/") || slices.Contains(elements, "..") || path.Clean(name) == "." || path.IsAbs(name) {
		return "", errLeadsOut
	}
	if system == "windows" {
		for i, element := range elements {
			elements[i] = windowsName(element)
		}
	}
	name = path.Clean(strings.Join(elements, "/"))
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", errLeadsOut
	}
	return name, nil
}

// windowsDevices are names that Windows takes for a device in every directory, with any extension.
var windowsDevices = []string{
	"con", "prn", "aux", "nul", "conin$", "conout$",
	"com0", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9", "com¹", "com²", "com³",
	"lpt0", "lpt1", "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9", "lpt¹", "lpt²", "lpt³",
}

// windowsName changes one element of a path that Windows would read as another name: a device, a name that ends in dots
// or spaces, or the short name (GIT~1) of something that exists.
func windowsName(element string) string {
	if element == "" || element == "." {
		return element
	}
	if trimmed := strings.TrimRight(element, ". "); trimmed != element {
		element = trimmed + strings.Repeat("_", len(element)-len(trimmed))
	}
	stem, _, _ := strings.Cut(element, ".")
	if slices.Contains(windowsDevices, strings.ToLower(strings.TrimRight(stem, " "))) {
		element = "_" + element
	}
	runes := []rune(element)
	for i, r := range runes {
		if r == '~' && i+1 < len(runes) && runes[i+1] >= '0' && runes[i+1] <= '9' {
			runes[i] = '_'
		}
	}
	return string(runes)
}
