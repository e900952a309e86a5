package service

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/webhook"
)

// Forms of names. They are compiled once and never change.
var (
	envName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	imageName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	language    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+#._-]{0,31}$`)
)

// maxVariableName bounds the name of an environment variable, which a secret has, too: each entry of the egress log has the names of the secrets
// that were added, and each worker of a Kubernetes namespace keeps the names of the variables of all sandboxes there.
const maxVariableName = 128

func checkText(field, s string) error {
	if !utf8.ValidString(s) {
		return farm.Invalidf("%s is not UTF-8", field)
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return farm.Invalidf("%s holds a control character", field)
	}
	if at := strings.IndexFunc(s, func(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }); at >= 0 {
		r, _ := utf8.DecodeRuneInString(s[at:])
		return farm.Invalidf("%s holds %U, which changes the direction of the text around it", field, r)
	}
	return nil
}

func (s *Service) checkName(name string) error {
	if len(name) > s.limits.MaxNameBytes {
		return farm.Invalidf("name has %d bytes; at most %d are allowed", len(name), s.limits.MaxNameBytes)
	}
	return checkText("name", name)
}

func (s *Service) checkEnv(p *problems, env map[string]string) {
	if len(env) > s.limits.MaxEnv {
		p.addf("/env", "env has %d variables; at most %d are allowed", len(env), s.limits.MaxEnv)
		return
	}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		size += len(name) + len(value)
		switch {
		case len(name) > maxVariableName:
			p.addf(strict.Pointer("/env", farm.Shorten(name)), "env holds the name %q of %d bytes; at most %d are allowed", farm.Shorten(name), len(name), maxVariableName)
		case !envName.MatchString(name):
			p.addf(strict.Pointer("/env", farm.Shorten(name)), "env holds the name %q: a name is letters, digits and underscores and does not begin with a digit", farm.Shorten(name))
		case strings.ContainsRune(value, 0):
			p.addf(strict.Pointer("/env", farm.Shorten(name)), "env.%s holds a NUL byte", farm.Shorten(name))
		}
	}
	if size > s.limits.MaxEnvBytes {
		p.addf("/env", "env has %d bytes; at most %d are allowed", size, s.limits.MaxEnvBytes)
	}
}

func (s *Service) checkLabels(p *problems, labels map[string]string) {
	if len(labels) > s.limits.MaxLabels {
		p.addf("/labels", "there are %d labels; at most %d are allowed", len(labels), s.limits.MaxLabels)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value, pointer := labels[key], strict.Pointer("/labels", farm.Shorten(key))
		switch {
		case key == "":
			p.addf(pointer, "labels holds an empty key")
		case strings.Contains(key, "="):
			p.addf(pointer, "the label key %q holds \"=\"", farm.Shorten(key))
		case len(key) > s.limits.MaxLabelBytes || len(value) > s.limits.MaxLabelBytes:
			p.addf(pointer, "the label %q is too long: at most %d bytes are allowed for its key and its value", farm.Shorten(key), s.limits.MaxLabelBytes)
		default:
			p.check(pointer, checkText("labels", key))
			p.check(pointer, checkText("labels."+farm.Shorten(key), value))
		}
	}
}

// between returns the default if nothing was given, and reports a value outside of the bounds. field is its pointer.
func between(p *problems, field string, given *int, standard, low, high int) int {
	if given == nil {
		return standard
	}
	if *given < low || *given > high {
		p.addf(field, "%s is %d; it must be from %d to %d", dotted(field), *given, low, high)
	}
	return *given
}

// dotted is the name of a pointer's field in sentences.
func dotted(pointer string) string {
	return strings.ReplaceAll(strings.TrimPrefix(pointer, "/"), "/", ".")
}

func (s *Service) timeout(p *problems, given *int) int {
	return between(p, "/timeout_seconds", given, s.limits.TimeoutDefaultSeconds, 1, s.limits.TimeoutMaxSeconds)
}

func (s *Service) ttl(p *problems, given *int) int {
	return between(p, "/ttl_seconds", given, s.limits.TTLDefaultSeconds, s.limits.TTLMinSeconds, s.limits.TTLMaxSeconds)
}

// idle is like ttl, but 0 switches the limit off.
func (s *Service) idle(p *problems, given *int) int {
	low, high := s.limits.IdleMinSeconds, s.limits.TTLMaxSeconds
	switch {
	case given == nil:
		return s.limits.IdleDefaultSeconds
	case *given != 0 && (*given < low || *given > high):
		p.addf("/idle_seconds", "idle_seconds is %d; it must be 0 (never) or from %d to %d", *given, low, high)
	}
	return *given
}

func (s *Service) resources(p *problems, r *wire.ResourcesRequest) farm.Resources {
	if r == nil {
		r = &wire.ResourcesRequest{}
	}
	l := s.limits
	out := farm.Resources{
		MemoryMB: between(p, "/resources/memory_mb", r.MemoryMB, l.Memory.Default, l.Memory.Min, l.Memory.Max),
		PIDs:     between(p, "/resources/pids", r.PIDs, l.PIDs.Default, l.PIDs.Min, l.PIDs.Max),
		DiskMB:   between(p, "/resources/disk_mb", r.DiskMB, l.Disk.Default, l.Disk.Min, l.Disk.Max),
		CPUs:     l.CPUs.Default,
	}
	if r.CPUs != nil {
		if out.CPUs = *r.CPUs; !(out.CPUs >= l.CPUs.Min && out.CPUs <= l.CPUs.Max) { // NaN is neither
			p.addf("/resources/cpus", "resources.cpus is %g; it must be from %g to %g", out.CPUs, l.CPUs.Min, l.CPUs.Max)
		}
	}
	return out
}

// networkFull was a mode of the contract that no farm ever had. A request for it gets an error that says what to use.
const networkFull = "full"

// network checks the network of a new sandbox, and its hosts, which it returns in their normal form.
func (s *Service) network(ctx context.Context, p *problems, tenant string, given *string, hosts []string) (mode farm.Network, rules []string) {
	mode = farm.NetworkPackages
	if given != nil {
		mode = farm.Network(*given)
	}
	switch {
	case mode == networkFull:
		instead := "packages"
		if len(s.options.Allow) > 0 {
			instead = "allowlist and name the hosts in allow_hosts, or packages"
		}
		p.addf("/network", "network \"full\" does not exist, since no sandbox has an interface to the outside: use %s", instead)
	case !slices.Contains(farm.Networks(), mode):
		p.addf("/network", "network %q is not known: it is one of none, packages, allowlist", farm.Shorten(string(mode)))
	case mode == farm.NetworkAllowlist:
		if len(s.options.Allow) == 0 {
			p.addf("/network", "network %q is not enabled on this farm: its operator names the hosts that callers may allow in the setting egress.allow. Until then use packages, which reaches the package indexes, or none", mode)
			break
		}
		rules = s.hosts(ctx, p, tenant, hosts)
	case len(hosts) > 0:
		text := "allow_hosts needs the network mode allowlist"
		if len(s.options.Allow) == 0 {
			text += ", which is not enabled on this farm (its operator's setting egress.allow): leave it out"
		}
		p.addf("/allow_hosts", "%s", text)
	}
	return mode, rules
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
		return farm.Invalidf("context %q is not a name: use letters, digits, dots, dashes and underscores, at most 64", farm.Shorten(name))
	}
	return nil
}

func orElse(given *string, standard string) string {
	if given == nil {
		return standard
	}
	return *given
}

// checkCallback refuses an address to which no callback may go; none at all is fine. The sender looks again when it
// connects, since names can change their address. No name is looked up for a request that has problems already, so it is the last check of a
// request.
func (s *Service) checkCallback(ctx context.Context, p *problems, raw string) {
	if raw == "" {
		return
	}
	policy := webhook.Policy{AllowPrivate: s.options.AllowPrivateCallbacks, NoLookup: p.err() != nil, Resolver: s.Resolver}
	if !policy.NoLookup {
		budget.LeaveCore(ctx) // it waits
	}
	p.check("/callback_url", policy.Check(ctx, raw))
}

// hosts checks the rules of a sandbox's allow_hosts and returns them in their normal form: each must be within what the operator allows, to the
// farm and to the tenant.
func (s *Service) hosts(ctx context.Context, p *problems, tenant string, given []string) []string {
	if len(given) > s.limits.MaxAllowHosts {
		p.addf("/allow_hosts", "allow_hosts has %d rules; at most %d are allowed", len(given), s.limits.MaxAllowHosts)
		return nil
	}
	lists, err := s.lists.of(ctx, s, tenant)
	if err != nil {
		p.check("/allow_hosts", err)
		return nil
	}
	out := []string{}
	for i, text := range given {
		pointer := strict.Pointer("/allow_hosts", strconv.Itoa(i))
		r, err := farm.ParseHostRule(text)
		switch {
		case err != nil:
			p.check(pointer, err)
		case r.Any():
			p.addf(pointer, "the rule %q is for operators: name hosts, such as api.example.com or *.example.com", r)
		case !r.Covered(s.options.Allow):
			p.addf(pointer, "the rule %q is not within what this farm allows (its setting egress.allow): %s", r, ceiling(s.options.Allow))
		case !lists.Hosts.Covers(r):
			p.addf(pointer, "the rule %q is not within what your tenant may reach: %s", r, ceiling(lists.Hosts.Rules))
		case !slices.Contains(out, r.String()):
			out = append(out, r.String())
		}
	}
	return out
}

// ceilingShown is how many rules of a ceiling an error names.
const ceilingShown = 10

// ceiling names the rules that bound others.
func ceiling(rules []farm.HostRule) string {
	if len(rules) == 0 {
		return "no host"
	}
	names := make([]string, min(len(rules), ceilingShown))
	for i := range names {
		names[i] = strconv.Quote(rules[i].String()) // methods have commas between them, too
	}
	text := strings.Join(names, ", ")
	if more := len(rules) - len(names); more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return text
}

// EgressPageMax and EgressPageDefault are the sizes of a page of an egress log.
const (
	EgressPageMax     = 1000
	EgressPageDefault = 100
)

// Egress reads the log of a sandbox's connections behind an entry, the oldest first.
func (s *Service) Egress(ctx context.Context, tenant, id, after string, limit int) (wire.List[wire.EgressEntry], error) {
	if _, err := s.sandbox(ctx, tenant, id); err != nil {
		return wire.List[wire.EgressEntry]{}, err
	}
	entries, more, err := s.Store.Egress(ctx, farm.Ref{Tenant: tenant, ID: id}, after, limit)
	if err != nil {
		return wire.List[wire.EgressEntry]{}, err
	}
	list := wire.List[wire.EgressEntry]{Items: make([]wire.EgressEntry, len(entries))}
	for i, e := range entries {
		e.Secrets = emptyIfNil(e.Secrets)
		list.Items[i] = wire.EgressEntry(e)
	}
	if more {
		list.NextCursor = wire.Cursor(entries[len(entries)-1].ID)
	}
	return list, nil
}

// runtime is the OCI runtime that a new sandbox must have: that of the request, or else the default of its tenant. Empty leaves it to the
// node.
func (s *Service) runtime(ctx context.Context, p *problems, tenant string, given *string) string {
	lists, err := s.lists.of(ctx, s, tenant)
	if err != nil {
		p.check("/runtime", err)
		return ""
	}
	own := lists.Runtimes
	var name string
	switch {
	case given != nil:
		name = *given
	case len(own) > 0:
		name = own[0]
	default:
		return ""
	}
	if err := farm.CheckRuntime(name); err != nil {
		p.addf("/runtime", "runtime: %s", farm.MessageOf(err))
		return ""
	}
	if len(own) > 0 && !slices.Contains(own, name) {
		p.addf("/runtime", "runtime %s is not allowed for your tenant: it may have %s", name, strings.Join(own, ", "))
		return name
	}
	what := "runtime " + name
	if given == nil {
		what += ", the default of your tenant,"
	}
	p.check("/runtime", s.checkRuntime(ctx, name, what))
	return name
}

// checkRuntime refuses a runtime that no live worker offers: its sandbox would wait forever. If no worker is known, it may wait. what names
// the runtime in the error.
func (s *Service) checkRuntime(ctx context.Context, name, what string) error {
	var offered []string
	for _, fresh := range []bool{false, true} {
		nodes, err := s.readNodes(ctx, fresh)
		switch {
		case err != nil:
			return err
		case len(nodes.runtimes) == 0:
			return nil
		}
		offered = nil
		for _, list := range nodes.runtimes {
			offered = append(offered, list...)
		}
		if slices.Contains(offered, name) {
			return nil
		}
	}
	slices.Sort(offered)
	return farm.Invalidf("%s is not offered; there is %s. The operator of the farm adds runtimes (docs/operations.md, gVisor and other runtimes)", what, strings.Join(slices.Compact(offered), ", "))
}

// runtimeText names a runtime in a list of what a sandbox needs; "" is nothing.
func runtimeText(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(", runtime %s", name)
}
