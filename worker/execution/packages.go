package execution

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Bounds on what an install may report. The agent is not trusted.
const (
	maxReported     = 500 // packages that imports may need
	maxPackageText  = 256
	maxPackageNote  = 4 << 10
	maxInstallNotes = 100
	maxPackages     = 20_000 // packages of a sandbox
)

// packageBytes is what a package of a list takes as JSON beside its name and version.
const packageBytes = 48

// reportRequested returns the outcome of each requested package, in the order of the request, whatever the agent left out or made up.
func reportRequested(asked *farm.InstallRequest, o *agent.Outcome, timeout time.Duration) []farm.PackageOutcome {
	list := make([]farm.PackageOutcome, 0, len(asked.Packages))
	for _, requested := range asked.Packages {
		name, _ := farm.RequirementName(asked.Manager, requested)
		outcome := farm.PackageOutcome{Name: name, Requested: requested, Status: farm.PackageFailed, Message: unreported(name, o, timeout)}
		i := slices.IndexFunc(o.Install, func(p farm.PackageOutcome) bool { return p.Requested == requested })
		if i >= 0 {
			outcome = o.Install[i]
			outcome.Name, outcome.Requested = name, requested
		}
		list = append(list, outcome)
	}
	return list
}

// unreported says why the agent reported nothing on a package.
func unreported(name string, o *agent.Outcome, timeout time.Duration) string {
	switch {
	case o.OutputGone:
		return name + ": the sandbox no longer knows how this installation ended. GET /v1/sandboxes/{id}/packages lists what is installed."
	case o.TimedOut:
		return fmt.Sprintf("%s was not installed: the time was up after %s.", name, farm.Plural(int(timeout.Seconds()), "second"))
	case o.Canceled:
		return name + " was not installed: the job was cancelled."
	case o.OutOfMemory:
		return name + " was not installed: the sandbox's memory limit was reached. Create a sandbox with more memory_mb."
	default:
		return name + " was not installed: the installer ended without a report."
	}
}

// reportImports returns the outcomes of packages that were installed for imports.
func reportImports(o *agent.Outcome) []farm.PackageOutcome {
	list := make([]farm.PackageOutcome, 0, len(o.Install))
	for _, outcome := range o.Install {
		if name, ok := farm.RequirementName(farm.ManagerPip, outcome.Name); ok {
			outcome.Name = name
			list = append(list, outcome)
		}
	}
	return list
}

// checked bounds what an agent reports on a package.
func checked(p farm.PackageOutcome) farm.PackageOutcome {
	if p.Status != farm.PackageInstalled {
		p.Status = farm.PackageFailed
	}
	p.Name, p.Requested, p.Version = plain(p.Name, maxPackageText), plain(p.Requested, maxPackageText), plain(p.Version, maxPackageText)
	p.Message, p.Why = plain(p.Message, maxPackageNote), plain(p.Why, maxPackageText)
	if !versionPattern.MatchString(p.Version) {
		p.Version = ""
	}
	return p
}

// versionPattern matches versions of all package managers.
var versionPattern = regexp.MustCompile(`^[A-Za-z0-9.+!_~-]{0,256}$`)

// plain is clip that also removes control characters, but for line ends and tabs, so that a terminal only shows the text.
func plain(s string, limit int) string {
	return clip(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, s), limit)
}

// withSandboxID fills in the id of a sandbox, which the agent does not know, in the paths of a text.
func withSandboxID(text, sandbox string) string {
	return strings.ReplaceAll(text, "/v1/sandboxes/{id}/", "/v1/sandboxes/"+sandbox+"/")
}

// nameSandbox fills in the id of a sandbox in all texts of an install.
func nameSandbox(sandbox string, packages []farm.PackageOutcome, notes []string) {
	for i := range packages {
		packages[i].Message = withSandboxID(packages[i].Message, sandbox)
	}
	for i := range notes {
		notes[i] = withSandboxID(notes[i], sandbox)
	}
}

// Packages lists what is installed in a sandbox. Its job does not wait in the sandbox's FIFO.
func (x *Runner) Packages(ctx context.Context, t Task) (Outcome, error) {
	c, err := x.node.Connect(ctx, t.Sandbox)
	if err == nil {
		var found []farm.Package
		if found, err = c.Packages(ctx); err == nil {
			found = valid(found)
			text := 0
			for _, p := range found {
				text += packageBytes + len(p.Name) + len(p.Version)
			}
			if err = chargeList(ctx, text); err == nil {
				return Outcome{State: farm.JobCompleted, Result: &farm.Result{Packages: found}}, nil
			}
		}
	}
	if gone, ok := x.node.Gone(ctx, t.Sandbox); ok {
		return Outcome{}, gone
	}
	return Outcome{}, fmt.Errorf("list packages: %w", err)
}

// valid keeps the packages whose names and versions are well-formed.
func valid(found []farm.Package) []farm.Package {
	found = found[:min(len(found), maxPackages)]
	return slices.DeleteFunc(found, func(p farm.Package) bool {
		name, ok := farm.RequirementName(p.Manager, p.Name)
		return !ok || name != p.Name || len(p.Name) > maxPackageText || p.Version == "" || !versionPattern.MatchString(p.Version)
	})
}

var (
	// missingInCode matches the value of a ModuleNotFoundError. A part of a package that is there is not meant: an index does not have it.
	missingInCode = regexp.MustCompile(`^No module named '([A-Za-z]\w*)'$`)
	// missingInCommand matches the last line of a program that lacks a module, and what python -m prints.
	missingInCommand = regexp.MustCompile(`(?:^|\n)(?:ModuleNotFoundError: |\S*python[0-9.]*: )No module named '?([A-Za-z]\w*)'?\s*$`)
	// missingOptional matches what pandas says of a package that one of its functions needs. Of several that would do, it is the first.
	missingOptional = regexp.MustCompile("(?:Missing optional dependency '|`Import )([A-Za-z][\\w.-]*)(?:'|` failed)")
	// missingInNode matches what Node prints for a package that is not installed. A path is a file of the caller's.
	missingInNode = regexp.MustCompile(`Cannot find (?:module|package) '((?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*)'`)
	// missingFile matches the value of a FileNotFoundError of a file in the workspace. A name without an extension may be that of a program.
	missingFile = regexp.MustCompile(`No such file or directory: '(?:/workspace/)?([^/'][^']*\.\w+)'$`)
	// missingFileInCommand matches the last line of a Python program that lacks a file of the workspace, or is one.
	missingFileInCommand = regexp.MustCompile(`(?:^|\n)(?:\S*python[0-9.]*: can't open file|FileNotFoundError: \[Errno 2\] No such file or directory:) '(?:/workspace/)?([^/'\n][^'\n]*\.\w+)'` +
		`(?:: \[Errno 2\] No such file or directory)?\s*$`)
	// missingProgram matches what shells print for a program that is not there.
	missingProgram = regexp.MustCompile(`(?:^|\n)\S*sh: (?:line )?(?:\d+: )?([\w.+-]+): (?:command )?not found\s*$`)
)

// What programs print that are short of something, by whatever language they are written in.
var (
	diskFull    = regexp.MustCompile(`No space left on device|ENOSPC`)
	tooMany     = regexp.MustCompile(`can't start new thread|fork: (?:retry: )?Resource temporarily unavailable|Cannot fork|pthread_create failed`)
	forkRefused = regexp.MustCompile(`in (?:fork|_fork_exec|_execute_child|popen)\b|\bfork\(`) // in the traceback of an error that has other causes, too
	needsRoot   = regexp.MustCompile(`(?:^|[\s:])(?:sudo|apt|apt-get): (?:command )?not found|No such file or directory: '(?:sudo|apt|apt-get)'` +
		`|/var/lib/(?:dpkg|apt)/[^\n]*\((?:13|30): |dpkg: error: requested operation requires superuser privilege`)
	noMoreInput = regexp.MustCompile(`(?:^|\n)EOFError: EOF when reading a line\s*$`)
)

// notFound is the exit code of a shell that has not found a program.
const notFound = 127

// hintBytes is how much of the end of a text hints search: the patterns take some 0.4 ms of a core for each KiB.
const hintBytes = 8 << 10

func ending(text string) string { return text[max(len(text)-hintBytes, 0):] }

func says(pattern *regexp.Regexp, text string) bool { return pattern.MatchString(ending(text)) }

// hints are notes on what the sandbox lacked, and how there is more of it, in the words of the API. allowlist says whether the farm has that network;
// denied are the hosts that it denied.
func hints(r *farm.Result, request *farm.Request, sandbox *farm.Sandbox, allowlist bool, denied []farm.EgressEntry) []string {
	s := &sandbox.Spec
	code, raised, last, printed := farm.ExecuteResult{}, farm.CodeError{}, failedCommand(r), failure(r)
	if r.Execute != nil {
		code = *r.Execute
	}
	if code.Error != nil {
		raised = *code.Error
	}
	fails := func(pattern *regexp.Regexp) bool {
		return slices.ContainsFunc(printed, func(text string) bool { return says(pattern, text) })
	}
	// Cells run apt with !, which raises nothing.
	root := fails(needsRoot) || says(needsRoot, code.Stderr) || says(needsRoot, code.Stdout)
	// A notebook may allow input, and shows notes as output.
	asks := (raised.Name == "StdinNotImplementedError" || fails(noMoreInput)) && (request.Execute == nil || request.Execute.Cell == nil)
	forks := raised.Name == "BlockingIOError" && says(forkRefused, strings.Join(raised.Traceback, "\n"))
	node, program := submatch(missingInNode, last.Stderr), submatch(missingProgram, last.Stderr)
	lacksProgram := program != "" && last.ExitCode == notFound && node == "" && !root
	ofNode := program == "node" || program == "npm" || program == "npx"
	const otherPrograms = "Packages of pip and npm can be installed. Other programs need another image, which the operator of the farm adds (docs/images.md)."
	file, upload := submatch(missingFileInCommand, last.Stderr), "upload a file of yours first"
	if raised.Name == "FileNotFoundError" {
		file, upload = submatch(missingFile, raised.Value), farm.SendFile+"upload it first"
	}
	if farm.HiddenPath(file) { // the code is to get no one to send it a .env
		file = ""
	}
	var notes []string
	for _, lack := range []struct {
		shown bool
		note  string
	}{
		{true, cmp.Or(deniedNote(denied, s), networkNote(r, s, allowlist))},
		{node != "", fmt.Sprintf("The package %s is not installed: install it (%s with manager npm).", node, farm.InstallRouteOf(sandbox.ID))},
		{lacksProgram && ofNode, fmt.Sprintf("This image has no %s: create a sandbox with the image node.", program)},
		{lacksProgram && !ofNode, fmt.Sprintf("This image has no program %s. ", program) + otherPrograms},
		{true, moduleNote(r, request, sandbox)},
		{file != "" && (request.Execute == nil || request.Execute.Cell == nil), fmt.Sprintf("The workspace has no file %s, or not its folder. Code sees only the files of the sandbox: %s "+
			farm.UploadWays+". Code that writes makes the folder first.", file, upload)},
		{asks, "Code cannot ask for input here: pass the values in the code or as files, or give a command its input (echo yes | …)." + farm.AskElsewhere},
		{fails(diskFull), fmt.Sprintf("A folder of the sandbox is full: the workspace and /tmp have %d MiB each (disk_mb), and the home directory, where installed packages are, has four times that. "+
			"Delete files that are not needed, or create a sandbox with more disk_mb; files count against memory_mb, too.", s.Resources.DiskMB)},
		{forks || fails(tooMany), fmt.Sprintf("The sandbox has as many processes and threads as it may have: %d (pids), with those of the farm's agent and of the interpreters that run. "+
			"Start fewer at once, or end those that are not needed"+farm.MorePIDs+".", s.Resources.PIDs)},
		{root, "Code in a sandbox is not root, so apt and sudo do not work. " + otherPrograms},
	} {
		if lack.shown && lack.note != "" {
			notes = append(notes, lack.note)
		}
	}
	return notes
}

// endedWithRun words an error of memory for a run: its sandbox and its kernel are gone.
func endedWithRun(r *farm.ExecuteResult) {
	if r != nil && r.Error != nil && r.Error.Name == farm.ErrorOutOfMemory {
		r.Error.Value, _, _ = strings.Cut(strings.Replace(r.Error.Value, farm.MoreMemory, "run it with more memory_mb", 1), " A new kernel has been started")
	}
}

// failedCommand is the last command of a result, if it has failed; else an empty one.
func failedCommand(r *farm.Result) farm.CommandOutcome {
	if r.Command != nil {
		if n := len(r.Command.Commands); n > 0 && r.Command.Commands[n-1].ExitCode != 0 {
			return r.Command.Commands[n-1]
		}
	}
	return farm.CommandOutcome{}
}

// failure is what a result says of a failure: the error of code and what it has printed to stderr, or what the last command has printed.
func failure(r *farm.Result) []string {
	switch last := failedCommand(r); {
	case r.Execute != nil && r.Execute.Error != nil:
		return []string{r.Execute.Error.Value, r.Execute.Stderr}
	case r.Execute != nil && r.Execute.ExitCode != 0:
		return []string{r.Execute.Stderr}
	default:
		return []string{last.Stderr, last.Stdout}
	}
}

// maxNoted bounds a name in a note, in bytes.
const maxNoted = 255

// noted is a name that code has chosen, such as of a file, as a note names it: at most limit bytes, all printable.
func noted(name string, limit int) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case unicode.Is(unicode.Zs, r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, name)
	const rest = " …"
	if len(name) > limit {
		name = strings.ToValidUTF8(name[:limit-len(rest)], "") + rest
	}
	return name
}

// submatch is the first group of a pattern in the end of a text, a name for a note; "" if it does not match, or if the name, which the code chooses, is longer
// than names are or is not all printable: a note is the farm's words.
func submatch(pattern *regexp.Regexp, text string) string {
	found := pattern.FindStringSubmatch(ending(text))
	if found == nil || noted(found[1], maxNoted) != found[1] {
		return ""
	}
	return found[1]
}

// moduleNote says how a module is installed for lack of which code or the last command has failed; "" if it has not. A cell of a notebook gets none:
// its clients show notes as output. Nor is one needed where auto_install has tried to install something: it says so itself.
func moduleNote(r *farm.Result, request *farm.Request, s *farm.Sandbox) string {
	module, auto := missingModule(r, request)
	kind, optional := "module", optionalPackage(r, request)
	if optional != "" {
		kind, module = "package", optional
	}
	if module == "" {
		return ""
	}
	if s.Spec.Network == farm.NetworkNone {
		return fmt.Sprintf(`The %s %s is not installed, and a sandbox with network "none" reaches no package index. Another one with network "packages" does.`, kind, module)
	}
	way := "packages" // of the run
	if !s.OneShot {
		way = farm.InstallRouteOf(s.ID)
	}
	if optional != "" {
		return fmt.Sprintf("The package %s is not installed: install it (%s). auto_install does not, since no import statement names it.", optional, way)
	}
	if auto {
		return fmt.Sprintf("auto_install found no package to install for the module %s: it installs what import statements name. Install the package that provides it (%s).", module, way)
	}
	if dist := farm.DistributionOf(module); dist != module {
		return fmt.Sprintf("The module %s is in the package %s: install it (%s)"+farm.OrAutoInstall+".", module, dist, way)
	}
	return fmt.Sprintf("The module %s is not installed: install the package that provides it, most often of the same name (%s)"+farm.OrAutoInstall+".", module, way)
}

// optionalPackage is the package that a function of pandas lacked; "" if none did, or if the result is not to say how it is installed.
func optionalPackage(r *farm.Result, request *farm.Request) string {
	text := ""
	switch {
	case r.Execute != nil && r.Execute.Error != nil && r.Execute.Error.Name == "ImportError" && request.Execute != nil && request.Execute.Cell == nil:
		text = r.Execute.Error.Value
	case r.Command != nil:
		stderr := "\n" + failedCommand(r).Stderr
		if at := strings.LastIndex(stderr, "\nImportError: "); at >= 0 {
			text = stderr[at:]
		}
	}
	return submatch(missingOptional, text)
}

// missingModule is the module that was not found, and whether auto_install had nothing to install for it; "" if none was missing, or if the result is
// not to say how it is installed.
func missingModule(r *farm.Result, request *farm.Request) (module string, auto bool) {
	switch {
	case r.Execute != nil && request.Execute != nil:
		e := r.Execute.Error
		if e == nil || e.Name != "ModuleNotFoundError" || request.Execute.AutoInstall && len(r.Execute.Installed) > 0 || request.Execute.Cell != nil {
			return "", false
		}
		return submatch(missingInCode, e.Value), request.Execute.AutoInstall
	case r.Command != nil && request.Command != nil && (!request.Command.AutoInstall || len(r.Command.Installed) == 0):
		return submatch(missingInCommand, failedCommand(r).Stderr), request.Command.AutoInstall
	}
	return "", false
}

const (
	// curlUnresolved is curl's exit code when a name does not resolve, and curlUnconnected when an address does not answer; with -s it prints nothing.
	curlUnresolved, curlUnconnected = 6, 7
	// hostsInNote bounds the rules of allow_hosts that a note names.
	hostsInNote = 10
)

// networkNote says what the sandbox reaches and how that is set, if the result shows that the code did not reach a host; "" otherwise. In no
// sandbox do names resolve, and a host of allow_hosts that is down looks different: the proxy answers for it. allowlist: the farm has that network.
func networkNote(r *farm.Result, s *farm.SandboxSpec, allowlist bool) string {
	if !showsUnreached(r) {
		return ""
	}
	other := "Write the data that the code needs to the workspace."
	if allowlist {
		other = `A sandbox with network "allowlist" also reaches the hosts of allow_hosts, within what the farm's operator allows. Otherwise write the data that the code needs to the workspace.`
	}
	switch s.Network {
	case farm.NetworkNone:
		return `A host was not reached: this sandbox has network "none". One with network "packages" reaches the package indexes. ` + other
	case farm.NetworkAllowlist:
		return fmt.Sprintf(`A host was not reached: this sandbox has network "allowlist" and reaches the package indexes and the hosts of allow_hosts (%s), `+
			"only through the proxy that HTTPS_PROXY names. "+farm.AllowMore, hostsOf(s.AllowHosts))
	default:
		return `A host was not reached: this sandbox has network "packages", so pip, uv and npm reach the package indexes and nothing else is reached. ` + other
	}
}

// deniedNote names the hosts that code of the network allowlist did not reach: those that were denied, with how they are allowed, and those that
// are allowed; "" if there are none. The code may have gone on without them.
func deniedNote(denied []farm.EgressEntry, s *farm.SandboxSpec) string {
	var hosts, allowed, notes []string
	private := ""
	for _, e := range denied {
		host := fmt.Sprintf("%s:%d (%s)", plain(e.Host, maxPackageText), e.Port, e.Reason)
		if e.Reason == egressproxy.ReasonAddress {
			private = ", unless the farm's operator names others in egress.private"
		}
		switch e.Reason {
		case egressproxy.ReasonName, egressproxy.ReasonAddress, egressproxy.ReasonConnect:
			allowed = append(allowed, host)
		default:
			hosts = append(hosts, host)
		}
	}
	if len(hosts) > 0 {
		notes = append(notes, fmt.Sprintf("Denied: %s. The sandbox reaches the hosts of allow_hosts (%s): add a host there"+farm.AllowLater+"; "+
			"the farm's operator sets what may be allowed.", strings.Join(hosts, ", "), hostsOf(s.AllowHosts)))
	}
	if len(allowed) > 0 {
		notes = append(notes, fmt.Sprintf("Allowed, but not reached: %s. The farm resolves the names itself, and connects to public addresses only%s.", strings.Join(allowed, ", "), private))
	}
	return strings.Join(notes, " ")
}

func hostsOf(rules []string) string {
	switch {
	case len(rules) == 0:
		return "it is empty"
	case len(rules) > hostsInNote:
		return fmt.Sprintf("%s and %d more", strings.Join(rules[:hostsInNote], ", "), len(rules)-hostsInNote)
	default:
		return strings.Join(rules, ", ")
	}
}

// showsUnreached reports whether a program says in a result that it could not resolve a name or was denied a host.
func showsUnreached(r *farm.Result) bool {
	if e := r.Execute; e != nil {
		return unreached(e.Stdout) || unreached(e.Stderr) ||
			e.Error != nil && (unreached(e.Error.Value) || slices.ContainsFunc(e.Error.Traceback, unreached))
	}
	return r.Command != nil && slices.ContainsFunc(r.Command.Commands, func(c farm.CommandOutcome) bool {
		return unreached(c.Stdout) || unreached(c.Stderr) || curlFailed(c)
	})
}

// curlFailed reports whether a command is a curl that did not reach a host other than the sandbox itself.
func curlFailed(c farm.CommandOutcome) bool {
	if !strings.Contains(c.Command, "curl") {
		return false
	}
	return c.ExitCode == curlUnresolved || c.ExitCode == curlUnconnected && !slices.ContainsFunc([]string{"localhost", "127.", "0.0.0.0", "::1"}, func(own string) bool {
		return strings.Contains(c.Command, own)
	})
}

// unreached reports whether a text has what programs say that do not reach a host.
func unreached(text string) bool {
	return slices.ContainsFunc([]string{
		"Temporary failure in name resolution", "Name or service not known", "No address associated with hostname", // glibc: Python, Rust, psql, …
		"Name does not resolve",                                         // musl
		"Could not resolve host",                                        // curl, git, ssh, R
		"unable to resolve host",                                        // wget
		"getaddrinfo EAI_AGAIN", "getaddrinfo ENOTFOUND", "ENETUNREACH", // Node
		"dial tcp: lookup ",                                                    // Go
		"java.net.UnknownHostException",                                        // Java
		"Network is unreachable",                                               // an address
		"Tunnel connection failed: 403", "CONNECT tunnel failed, response 403", // Python and curl, of the proxy
		"Proxy response (403)", // Node, of the proxy
	}, func(printed string) bool { return strings.Contains(text, printed) })
}
