package verbs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// flagOf is the flag for a field of the REST API, as texts of the farm name it.
var flagOf = map[string]string{
	"timeout_seconds": "--timeout",
	"ttl_seconds":     "--ttl",
	"idle_seconds":    "--idle",
	"expires_seconds": "--expires",
	"on_idle":         "--on-idle",
	"on_output_limit": "--on-output-limit",
	"auto_install":    "--auto-install",
	"allow_hosts":     "--allow-host",
	"gpu.count":       "--gpu",
	"gpu.model":       "--gpu-model",
	"memory_mb":       "--memory",
	"disk_mb":         "--disk",
	"pids":            "--pids",

	"resources.memory_mb": "--memory",
	"resources.disk_mb":   "--disk",
	"resources.cpus":      "--cpus",
	"resources.pids":      "--pids",
}

// bounded is a number that is not within its bounds, for a flag.
var bounded = regexp.MustCompile(`(--[a-z]+) is (-?\d+); it must be from (\d+) to (\d+)`)

// unit is a unit that a flag takes, and how many of the farm's unit it has.
type unit struct {
	name string
	size int
}

// The units of amounts, which the farm has in MiB, and of durations, which it has in seconds; the largest first.
var (
	amounts   = []unit{{"g", 1024}, {"m", 1}}
	durations = []unit{{"d", 24 * 60 * 60}, {"h", 60 * 60}, {"m", 60}, {"s", 1}}
)

// unitsOf are the units of a flag that takes numbers with one.
var unitsOf = map[string][]unit{"--memory": amounts, "--disk": amounts, "--timeout": durations, "--ttl": durations, "--idle": durations, "--expires": durations}

// withUnit is a number of the farm as a flag takes it: in the largest unit in which it is whole.
func withUnit(flag, number string) string {
	n, err := strconv.Atoi(number)
	for _, u := range unitsOf[flag] {
		if err == nil && n != 0 && n%u.size == 0 {
			return strconv.Itoa(n/u.size) + u.name
		}
	}
	return number
}

// apiWord is a word that may name a field; one in a longer name, such as that of a setting or a file, is none.
var apiWord = regexp.MustCompile(`\b[a-z][a-z_.]*[a-z]\b(?:\[\d+\])?`)

// verbOf are the verbs for routes of the REST API, as texts of the farm name them.
var verbOf = map[string]string{"images": `"sandfarm images"`, "keys": `"sandfarm key ls"`, "workers": `"sandfarm workers"`}

var (
	apiList      = regexp.MustCompile(`GET /v1/(images|keys|workers)\b`)
	apiInstall   = regexp.MustCompile(farm.InstallRouteOf(`(sbx_\w+)`) + `\b`)
	apiInstalled = regexp.MustCompile(`GET /v1/sandboxes/(sbx_\w+)/packages\b`)
	apiControl   = regexp.MustCompile(`POST /v1/sandboxes/(sbx_\w+)/(resume|restart)\b`)
)

// asFlags names what can be used here, in a text of the farm: flags in place of fields, verbs in place of routes.
func asFlags(text string) string {
	text = apiList.ReplaceAllStringFunc(text, func(route string) string { return verbOf[strings.TrimPrefix(route, "GET /v1/")] })
	text = strings.NewReplacer(
		"(packages)", "(--package)", "with manager npm", "with --manager npm", "leave gpu out", "leave --gpu out", farm.UploadWays, "(sandfarm cp)",
		"a command its input (echo yes | …)", `a command its input inside its line ("echo yes | …")`, "(env)", "(-e)", farm.OrAsProcess, "", farm.AllowLater, ", for a running sandbox by sandfarm sandbox allow",
	).Replace(text)
	text = apiInstall.ReplaceAllString(text, `"sandfarm packages install $1 NAME"`)
	text = apiInstalled.ReplaceAllString(text, `"sandfarm packages ls $1"`)
	text = apiControl.ReplaceAllString(text, `"sandfarm sandbox $2 $1"`)
	text = apiWord.ReplaceAllStringFunc(text, func(word string) string {
		name, index, listed := strings.Cut(strings.TrimSuffix(word, "]"), "[")
		if n, err := strconv.Atoi(index); listed && err == nil && name == "packages" {
			return "package " + strconv.Itoa(n+1)
		}
		if flag, ok := flagOf[name]; ok {
			return flag
		}
		return word
	})
	return bounded.ReplaceAllStringFunc(text, func(found string) string {
		part := bounded.FindStringSubmatch(found)
		flag := part[1]
		return fmt.Sprintf("%s is %s; it must be from %s to %s", flag, withUnit(flag, part[2]), withUnit(flag, part[3]), withUnit(flag, part[4]))
	})
}
