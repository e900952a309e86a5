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

// apiWord is a word that may name a field; one in a longer name, such as that of a setting or a file, is none.
var apiWord = regexp.MustCompile(`\b[a-z][a-z_.]*[a-z]\b(?:\[\d+\])?`)

// asFlags names what can be changed here: flags in place of fields, in a text of the farm.
func asFlags(text string) string {
	return apiWord.ReplaceAllStringFunc(text, func(word string) string {
		name, index, listed := strings.Cut(strings.TrimSuffix(word, "]"), "[")
		if n, err := strconv.Atoi(index); listed && err == nil && name == "packages" {
			return "package " + strconv.Itoa(n+1)
		}
		if flag, ok := flagOf[name]; ok {
			return flag
		}
		return word
	})
}
