package service

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Forms of names. They are compiled once and never change.
var (
	envName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	imageName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	language    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+#._-]{0,31}$`)
)

func checkText(field, s string) error {
	if !utf8.ValidString(s) {
		return farm.Invalidf("%s is not UTF-8", field)
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return farm.Invalidf("%s holds a control character", field)
	}
	return nil
}

func (s *Service) checkName(name string) error {
	if len(name) > s.limits.MaxNameBytes {
		return farm.Invalidf("name has %d bytes; at most %d are allowed", len(name), s.limits.MaxNameBytes)
	}
	return checkText("name", name)
}

func (s *Service) checkEnv(env map[string]string) error {
	if len(env) > s.limits.MaxEnv {
		return farm.Invalidf("env has %d variables; at most %d are allowed", len(env), s.limits.MaxEnv)
	}
	size := 0
	for name, value := range env {
		size += len(name) + len(value)
		switch {
		case !envName.MatchString(name):
			return farm.Invalidf("env holds the name %q: a name is letters, digits and underscores and does not begin with a digit", short(name))
		case strings.ContainsRune(value, 0):
			return farm.Invalidf("env.%s holds a NUL byte", short(name))
		}
	}
	if size > s.limits.MaxEnvBytes {
		return farm.Invalidf("env has %d bytes; at most %d are allowed", size, s.limits.MaxEnvBytes)
	}
	return nil
}

func (s *Service) checkLabels(labels map[string]string) error {
	if len(labels) > s.limits.MaxLabels {
		return farm.Invalidf("there are %d labels; at most %d are allowed", len(labels), s.limits.MaxLabels)
	}
	for key, value := range labels {
		switch {
		case key == "":
			return farm.Invalidf("labels holds an empty key")
		case strings.Contains(key, "="):
			return farm.Invalidf("the label key %q holds \"=\"", short(key))
		case len(key) > s.limits.MaxLabelBytes || len(value) > s.limits.MaxLabelBytes:
			return farm.Invalidf("the label %q is too long: at most %d bytes are allowed for its key and its value", short(key), s.limits.MaxLabelBytes)
		}
		if err := checkText("labels", key); err != nil {
			return err
		}
		if err := checkText("labels."+short(key), value); err != nil {
			return err
		}
	}
	return nil
}

// between gives the default when nothing was said, and refuses what is outside.
func between(field string, given *int, standard, low, high int) (int, error) {
	if given == nil {
		return standard, nil
	}
	if *given < low || *given > high {
		return 0, farm.Invalidf("%s is %d; it must be from %d to %d", field, *given, low, high)
	}
	return *given, nil
}

func (s *Service) timeout(given *int) (int, error) {
	return between("timeout_seconds", given, s.limits.TimeoutDefaultSeconds, 1, s.limits.TimeoutMaxSeconds)
}

func (s *Service) ttl(given *int) (int, error) {
	return between("ttl_seconds", given, s.limits.TTLDefaultSeconds, s.limits.TTLMinSeconds, s.limits.TTLMaxSeconds)
}

// idle is like ttl, but 0 switches the limit off.
func (s *Service) idle(given *int) (int, error) {
	if given != nil && *given == 0 {
		return 0, nil
	}
	return between("idle_seconds", given, s.limits.IdleDefaultSeconds, s.limits.IdleMinSeconds, s.limits.TTLMaxSeconds)
}

func (s *Service) resources(r *wire.ResourcesRequest) (farm.Resources, error) {
	if r == nil {
		r = &wire.ResourcesRequest{}
	}
	l := s.limits
	out := farm.Resources{CPUs: l.CPUs.Default}
	for _, f := range []struct {
		name  string
		given *int
		limit farm.IntLimits
		into  *int
	}{
		{"resources.memory_mb", r.MemoryMB, l.Memory, &out.MemoryMB},
		{"resources.pids", r.PIDs, l.PIDs, &out.PIDs},
		{"resources.disk_mb", r.DiskMB, l.Disk, &out.DiskMB},
	} {
		var err error
		if *f.into, err = between(f.name, f.given, f.limit.Default, f.limit.Min, f.limit.Max); err != nil {
			return out, err
		}
	}
	if r.CPUs != nil {
		if *r.CPUs < l.CPUs.Min || *r.CPUs > l.CPUs.Max {
			return out, farm.Invalidf("resources.cpus is %g; it must be from %g to %g", *r.CPUs, l.CPUs.Min, l.CPUs.Max)
		}
		out.CPUs = *r.CPUs
	}
	return out, nil
}

func (s *Service) network(given *string, hosts []string) (farm.Network, error) {
	mode := farm.NetworkPackages
	if given != nil {
		mode = farm.Network(*given)
	}
	switch {
	case !slices.Contains(farm.Networks(), mode):
		return "", farm.Invalidf("network %q is not known: it is one of none, packages, allowlist, full", short(string(mode)))
	case !slices.Contains(s.options.Networks, mode):
		return "", farm.Invalidf("network %q is not enabled on this farm", mode)
	case len(hosts) > 0 && mode != farm.NetworkAllowlist:
		return "", farm.Invalidf("allow_hosts needs the network mode allowlist")
	}
	return mode, nil
}

func (s *Service) checkCode(code string) error {
	if code == "" {
		return farm.Invalidf("code is empty")
	}
	if int64(len(code)) > s.limits.MaxCodeBytes {
		return farm.Errorf(farm.CodeTooLarge, "code has %d bytes; at most %d are allowed", len(code), s.limits.MaxCodeBytes)
	}
	return nil
}

func checkContext(name string) error {
	if !contextName.MatchString(name) {
		return farm.Invalidf("context %q is no name: use letters, digits, dots, dashes and underscores, at most 64", short(name))
	}
	return nil
}

func orElse(given *string, standard string) string {
	if given == nil {
		return standard
	}
	return *given
}

// short keeps a caller's text from filling an answer.
func short(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
