package verbs

import (
	"regexp"
	"strconv"
	"strings"
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

	"resources.memory_mb": "--memory",
	"resources.disk_mb":   "--disk",
	"resources.cpus":      "--cpus",
	"resources.pids":      "--pids",
}

// bounded is a number that is not within its bounds, for a flag that takes an amount with its unit: the farm counts in MiB or seconds.
var bounded = regexp.MustCompile(`(--[a-z]+) is -?\d+; it must be from \d+ to \d+`)

// unitOf is the unit of the farm's numbers for a flag.
var unitOf = map[string]string{"--memory": "MiB", "--disk": "MiB", "--timeout": "seconds", "--ttl": "seconds", "--idle": "seconds", "--expires": "seconds"}

// apiWord is a word that may name a field; one in a longer name, such as that of a setting or a file, is none.
var apiWord = regexp.MustCompile(`\b[a-z][a-z_.]*[a-z]\b(?:\[\d+\])?`)

// verbOf are the verbs for routes of the REST API, as texts of the farm name them.
var verbOf = map[string]string{"images": `"sandfarm images"`, "keys": `"sandfarm key ls"`, "workers": `"sandfarm workers"`}

var (
	apiList    = regexp.MustCompile(`GET /v1/(images|keys|workers)\b`)
	apiControl = regexp.MustCompile(`POST /v1/sandboxes/(sbx_\w+)/(resume|restart)\b`)
)

// asFlags names what can be used here, in a text of the farm: flags in place of fields, verbs in place of routes.
func asFlags(text string) string {
	text = apiList.ReplaceAllStringFunc(text, func(route string) string { return verbOf[strings.TrimPrefix(route, "GET /v1/")] })
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
		flag, _, _ := strings.Cut(found, " ")
		return strings.TrimRight(found+" "+unitOf[flag], " ")
	})
}
