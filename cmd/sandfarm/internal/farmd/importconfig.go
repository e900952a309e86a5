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

// Imported is what an older system's settings became.
type Imported struct {
	TOML  string   // settings of a farm
	Notes []string // what was not taken over, a sentence each
}

// foreign are the settings of the older systems with a config.toml. Pointers tell what was set.
type foreign struct {
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

// unneeded are settings for which a farm has no use.
func unneeded() map[string]string {
	return map[string]string{
		"docker.dockerfile_path":          "the farm builds its own image (sandfarm image build)",
		"docker.check_dockerfile_changes": "the farm builds its own image (sandfarm image build)",
		"docker.build_info_file":          "the farm builds its own image (sandfarm image build)",
		"docker.create_image_in_thread":   "the image is built before the farm is ready",
		"docker.open_mount_directory":     "files are never shared with the host: they have links",
		"docker.memswap_limit":            "sandboxes have no swap",
		"docker.user_only_one_container":  "it had no effect",
		"paths.results_dir":               "each sandbox has files of its own",
		"logging.max_file_size":           "the log goes to stderr: who keeps it rotates it",
		"logging.backup_count":            "the log goes to stderr: who keeps it rotates it",
		"logging.console_output":          "the log always goes to stderr",
		"logging.format":                  "log.format is text or json",
		"auth.require_auth":               "set api.keys: each key has a tenant",
		"auth.default_user_id":            "set api.keys: each key has a tenant",
		"auth.user_sandbox_limit":         "set api.keys: each key has a tenant",
	}
}

// taken are the settings that are taken over, or told of.
func taken() []string {
	return []string{
		"server.host", "server.port", "server.reset_all_containers", "docker.default_image", "docker.container_work_dir", "docker.mem_limit",
		"logging.level", "logging.log_file", "logging.use_structured_format", "mirror.pypi_index_url",
	}
}

// ImportConfig reads the config.toml of an older system and gives the settings that do the same here.
func ImportConfig(text []byte) (Imported, error) {
	var old foreign
	if err := toml.Unmarshal(text, &old); err != nil {
		return Imported{}, unreadable(err)
	}
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil {
		return Imported{}, unreadable(err)
	}
	i := &importing{}
	i.leftOut(all)
	err := errors.Join(i.server(&old), i.docker(&old), i.logging(&old), i.mirror(&old))
	return Imported{TOML: i.text(), Notes: i.notes}, err
}

// unreadable says where a file cannot be read. What the library says of a value of a wrong type is about Go's types.
func unreadable(err error) error {
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := wrong.Position()
		if key := strings.Join(wrong.Key(), "."); key != "" && strings.Contains(wrong.Error(), "cannot decode") {
			return fmt.Errorf("line %d: %s has a value of a wrong type", line, key)
		}
		return fmt.Errorf("line %d: %w", line, err)
	}
	return fmt.Errorf("read settings: %w", err)
}

// importing gathers settings, by table and in the order in which they come.
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
	b.WriteString("# Made by sandfarm import-config. \"sandfarm config example\" tells every setting.\n")
	for _, table := range i.tables {
		fmt.Fprintf(&b, "\n[%s]\n%s\n", table, strings.Join(i.lines[table], "\n"))
	}
	return b.String()
}

func (i *importing) server(old *foreign) error {
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
		return fmt.Errorf("server.port: %d is no port", port)
	}
	if old.Server.Host != nil {
		ip := net.ParseIP(*old.Server.Host)
		if *old.Server.Host == "localhost" || ip != nil && ip.IsLoopback() {
			host = *old.Server.Host
		} else {
			i.note("server.host: a farm without keys listens on this machine alone. For %q set api.keys, then api.listen.", *old.Server.Host)
		}
	}
	i.set("api", "listen", net.JoinHostPort(host, strconv.Itoa(port)))
	return nil
}

func (i *importing) docker(old *foreign) error {
	if old.Docker.Image != nil {
		i.note("docker.default_image: sandboxes are made of the farm's own image, python, which has what that of the old system had.")
	}
	if dir := old.Docker.WorkDir; dir != nil && strings.TrimRight(*dir, "/") != "/app/results" {
		i.note("docker.container_work_dir: files lie in /app/results (/workspace), not in %q.", *dir)
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

func (i *importing) mirror(old *foreign) error {
	if old.Mirror.PyPI == nil || *old.Mirror.PyPI == "" {
		return nil
	}
	s := defaultSettings()
	if s.Index.PyPIURL = strings.TrimRight(*old.Mirror.PyPI, "/") + "/"; s.Index.Validate() != nil {
		return fmt.Errorf("mirror.pypi_index_url: %q is no http address", *old.Mirror.PyPI)
	}
	i.set("index", "pypi_url", s.Index.PyPIURL)
	return nil
}

// mebibytes reads an amount of memory as Docker's client takes it: a number, with b, k, m or g behind it, or kb, mb or gb. It
// takes what a sandbox can have.
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
	room := farm.DefaultLimits().Memory
	if mb := n * unit / (1 << 20); err == nil && mb >= float64(room.Min) && mb <= float64(room.Max) {
		return int(mb), nil
	}
	return 0, fmt.Errorf("%q is no amount of memory from %dm to %dm", s, room.Min, room.Max)
}

func (i *importing) logging(old *foreign) error {
	if old.Logging.File != nil {
		i.note("logging.log_file: the log goes to stderr.")
	}
	if old.Logging.Level != nil {
		level, ok := map[string]string{
			"debug": "debug", "info": "info", "warning": "warn", "warn": "warn", "error": "error", "critical": "error",
		}[strings.ToLower(*old.Logging.Level)]
		if !ok {
			return fmt.Errorf("logging.level: %q is no level", *old.Logging.Level)
		}
		i.set("log", "level", level)
	}
	if old.Logging.Structured != nil && *old.Logging.Structured {
		i.set("log", "format", "json")
	}
	return nil
}

// leftOut tells of every setting that is not taken over.
func (i *importing) leftOut(all map[string]any) {
	known := map[string]bool{}
	for _, name := range taken() {
		known[name] = true
	}
	reasons := unneeded()
	for _, name := range names("", all) {
		if why := reasons[name]; why != "" {
			i.note("%s: %s.", name, why)
		} else if !known[name] {
			i.note("%s: it is not known and was left out.", name)
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
