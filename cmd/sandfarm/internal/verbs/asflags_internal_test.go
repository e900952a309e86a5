package verbs

import "testing"

func TestFieldsOfTheFarmAreFlagsHere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"It was stopped. timeout_seconds sets a longer timeout":         "It was stopped. --timeout sets a longer timeout",
		"resources.memory_mb is 5; it must be from 64 to 4096":          "--memory is 5m; it must be from 64m to 4g",
		"resources.disk_mb is 102398976; it must be from 16 to 65536":   "--disk is 99999g; it must be from 16m to 64g",
		"ttl_seconds is 2; it must be from 5 to 604800":                 "--ttl is 2s; it must be from 5s to 7d",
		"timeout_seconds is 0; it must be from 1 to 5400":               "--timeout is 0; it must be from 1s to 90m",
		"resources.pids is 2; it must be from 16 to 4096":               "--pids is 2; it must be from 16 to 4096",
		"Create a sandbox with more memory_mb.":                         "Create a sandbox with more --memory.",
		`use allowlist and name the hosts in allow_hosts, or packages`:  `use allowlist and name the hosts in --allow-host, or packages`,
		"the hosts of allow_hosts (none), only":                         "the hosts of --allow-host (none), only",
		`packages[0] is "a b": give a name`:                             `package 1 is "a b": give a name`,
		"There is no API key x. GET /v1/keys lists them.":               `There is no API key x. "sandfarm key ls" lists them.`,
		"No live worker uses node x; GET /v1/workers names the nodes.":  `No live worker uses node x; "sandfarm workers" names the nodes.`,
		"Resume it first (POST /v1/sandboxes/sbx_1/resume); code":       `Resume it first ("sandfarm sandbox resume sbx_1"); code`,
		"the setting limits.memory_mb":                                  "the setting limits.memory_mb",
		"max_memory_mb is used up, my_timeout_seconds timeout_seconds2": "max_memory_mb is used up, my_timeout_seconds timeout_seconds2",
		"read timeout_seconds.txt":                                      "read timeout_seconds.txt",
	} {
		if got := asFlags(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
