package farmd

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Imported is the result of ImportConfig.
type Imported struct {
	TOML  string   // settings for a farm
	Notes []string // one sentence for each setting that has no equivalent
}

// oldConfig is the config.toml of the older systems. A nil pointer means that a setting is missing.
type oldConfig struct {
	Server struct {
		Host  *string `toml:"host"`
		Port  *int    `toml:"port"`
		Reset *bool   `toml:"reset_all_containers"`
	} `toml:"server"`
	Docker struct {
		Image   *string `toml:"default_image"`
		WorkDir *string `toml:"container_work_dir"`
		Memory  any     `toml:"mem_limit"`
	} `toml:"docker"`
	Logging struct {
		Level      *string `toml:"level"`
		File       *string `toml:"log_file"`
		Structured *bool   `toml:"use_structured_format"`
	} `toml:"logging"`
	Mirror struct {
		PyPI *string `toml:"pypi_index_url"`
	} `toml:"mirror"`
}

// unusedSettings are settings without an equivalent, with the reason.
func unusedSettings() map[string]string {
	return map[string]string{
		"docker.dockerfile_path":          "the farm builds its own image (sandfarm image build)",
		"docker.check_dockerfile_changes": "the farm builds its own image (sandfarm image build)",
		"docker.build_info_file":          "the farm builds its own image (sandfarm image build)",
		"docker.create_image_in_thread":   "the image is built before the farm is ready",
		"docker.open_mount_directory":     "files are never shared with the host: they have download links",
		"docker.memswap_limit":            "sandboxes have no swap",
		"docker.user_only_one_container":  "it had no effect",
		"paths.results_dir":               "each sandbox has its own files",
		"logging.max_file_size":           "the log goes to stderr: rotate it where you store it",
		"logging.backup_count":            "the log goes to stderr: rotate it where you store it",
		"logging.console_output":          "the log always goes to stderr",
		"logging.format":                  "log.format is text or json",
		"auth.require_auth":               "set api.keys: each key has a tenant",
		"auth.default_user_id":            "set api.keys: each key has a tenant",
		"auth.user_sandbox_limit":         "set api.keys: each key has a tenant",
	}
}

// importedSettings are the settings that are imported or have a note of their own.
func importedSettings() []string {
	return []string{
		"server.host", "server.port", "server.reset_all_containers", "docker.default_image", "docker.container_work_dir", "docker.mem_limit",
		"logging.level", "logging.log_file", "logging.use_structured_format", "mirror.pypi_index_url",
	}
}

// ImportConfig translates the config.toml of an older system into settings of a farm.
func ImportConfig(text []byte) (Imported, error) {
	var old oldConfig
	if err := toml.Unmarshal(text, &old); err != nil {
		return Imported{}, unreadable(err)
	}
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil {
		return Imported{}, unreadable(err)
	}
	i := &importing{}
	i.noteUnused(all)
	err := errors.Join(i.server(&old), i.docker(&old), i.logging(&old), i.mirror(&old))
	return Imported{TOML: i.text(), Notes: i.notes}, err
}

// unreadable names the line of a syntax error. The message of the library about a wrong type would name Go types.
func unreadable(err error) error {
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := wrong.Position()
		if key := strings.Join(wrong.Key(), "."); key != "" && strings.Contains(wrong.Error(), "cannot decode") {
			return fmt.Errorf("line %d: %s has a value of the wrong type", line, key)
		}
		return fmt.Errorf("line %d: %w", line, err)
	}
	return fmt.Errorf("read settings: %w", err)
}

// importing collects settings by table, in their order.
type importing struct {
	tables []string
	lines  map[string][]string
	notes  []string
}

func (i *importing) set(table, key string, value any) {
	if i.lines == nil {
		i.lines = map[string][]string{}
	}
	if i.lines[table] == nil {
		i.tables = append(i.tables, table)
	}
	i.lines[table] = append(i.lines[table], fmt.Sprintf("%s = %#v", key, value))
}

func (i *importing) note(format string, args ...any) {
	i.notes = append(i.notes, fmt.Sprintf(format, args...))
}

func (i *importing) text() string {
	var b strings.Builder
	b.WriteString("# Made by sandfarm import-config. \"sandfarm config example\" lists all settings.\n")
	for _, table := range i.tables {
		fmt.Fprintf(&b, "\n[%s]\n%s\n", table, strings.Join(i.lines[table], "\n"))
	}
	return b.String()
}

func (i *importing) server(old *oldConfig) error {
	if old.Server.Reset != nil && *old.Server.Reset {
		i.note("server.reset_all_containers: sandboxes outlive a restart; \"sandfarm down\" removes them.")
	}
	if old.Server.Host == nil && old.Server.Port == nil {
		return nil
	}
	host, port := "127.0.0.1", 8000
	if old.Server.Port != nil {
		port = *old.Server.Port
	}
	if port < 0 || port > 65535 {
		return fmt.Errorf("server.port: %d is not a port", port)
	}
	if old.Server.Host != nil {
		ip := net.ParseIP(*old.Server.Host)
		if *old.Server.Host == "localhost" || ip != nil && ip.IsLoopback() {
			host = *old.Server.Host
		} else {
			i.note("server.host: a farm without keys listens on loopback only. For %q set api.keys, then api.listen.", *old.Server.Host)
		}
	}
	i.set("api", "listen", net.JoinHostPort(host, strconv.Itoa(port)))
	return nil
}

func (i *importing) docker(old *oldConfig) error {
	if old.Docker.Image != nil {
		i.note("docker.default_image: sandboxes use the image python of the farm, which has the packages of the old image.")
	}
	if dir := old.Docker.WorkDir; dir != nil && strings.TrimRight(*dir, "/") != "/app/results" {
		i.note("docker.container_work_dir: files are in /app/results (/workspace), not in %q.", *dir)
	}
	if old.Docker.Memory == nil {
		return nil
	}
	mb, err := mebibytes(fmt.Sprint(old.Docker.Memory))
	if err != nil {
		return fmt.Errorf("docker.mem_limit: %w", err)
	}
	i.set("limits.memory_mb", "default", mb)
	return nil
}

func (i *importing) mirror(old *oldConfig) error {
	if old.Mirror.PyPI == nil || *old.Mirror.PyPI == "" {
		return nil
	}
	s := defaultSettings()
	if s.Index.PyPIURL = strings.TrimRight(*old.Mirror.PyPI, "/") + "/"; s.Index.Validate() != nil {
		return fmt.Errorf("mirror.pypi_index_url: %q is not an http address", *old.Mirror.PyPI)
	}
	i.set("index", "pypi_url", s.Index.PyPIURL)
	return nil
}

// mebibytes parses an amount of memory in the form of the Docker client: a number with the suffix b, k, m, g, kb, mb or gb. It
// must be within the limits of a sandbox.
func mebibytes(s string) (int, error) {
	number := strings.ToLower(strings.TrimSpace(s))
	if rest, ok := strings.CutSuffix(number, "b"); ok && strings.TrimRight(rest, "kmg") != rest {
		number = rest
	}
	unit := 1.0
	for suffix, bytes := range map[string]float64{"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30} {
		if rest, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = rest, bytes
			break
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	limit := farm.DefaultLimits().Memory
	if mb := n * unit / (1 << 20); err == nil && mb >= float64(limit.Min) && mb <= float64(limit.Max) {
		return int(mb), nil
	}
	return 0, fmt.Errorf("%q is not an amount of memory from %dm to %dm", s, limit.Min, limit.Max)
}

func (i *importing) logging(old *oldConfig) error {
	if old.Logging.File != nil {
		i.note("logging.log_file: the log goes to stderr.")
	}
	if old.Logging.Level != nil {
		level, ok := map[string]string{
			"debug": "debug", "info": "info", "warning": "warn", "warn": "warn", "error": "error", "critical": "error",
		}[strings.ToLower(*old.Logging.Level)]
		if !ok {
			return fmt.Errorf("logging.level: %q is not a level", *old.Logging.Level)
		}
		i.set("log", "level", level)
	}
	if old.Logging.Structured != nil && *old.Logging.Structured {
		i.set("log", "format", "json")
	}
	return nil
}

// noteUnused notes every setting without an equivalent.
func (i *importing) noteUnused(all map[string]any) {
	known := map[string]bool{}
	for _, name := range importedSettings() {
		known[name] = true
	}
	reasons := unusedSettings()
	for _, name := range names("", all) {
		if why := reasons[name]; why != "" {
			i.note("%s: %s.", name, why)
		} else if !known[name] {
			i.note("%s: unknown setting, ignored.", name)
		}
	}
}

// names are the names of all settings, sorted.
func names(prefix string, table map[string]any) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if inner, ok := table[key].(map[string]any); ok {
			out = append(out, names(prefix+key+".", inner)...)
		} else {
			out = append(out, prefix+key)
		}
	}
	return out
}
