package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxMessageBytes bounds the message about one package.
	maxMessageBytes = 1 << 10
	// buildLines is how many of the last lines of a build are quoted.
	buildLines = 5
	// reasonTimeout bounds the request that asks the index why it refused.
	reasonTimeout = 5 * time.Second
)

var (
	missingPattern = regexp.MustCompile(`Because ([A-Za-z0-9._-]+)(?:\[[^\]]*\])? was not found in the package registry`)
	pythonPattern  = regexp.MustCompile(`(?:([A-Za-z0-9._-]+)(?:[<>=!~][^ ]*)? depends on Python|does not satisfy Python)([<>=!~0-9.,* ]+)`)
	onlyPattern    = regexp.MustCompile(`Because (only .*?|there (?:is|are) no versions? of .*?) and `)
	statusPattern  = regexp.MustCompile(`HTTP status \w+ error \((\d+)[^)]*\) for url \(([^)]+)\)`)
	wheelPattern   = regexp.MustCompile(`([A-Za-z0-9._-]+?)(?:[<>=!~][^ ]*)? has no (?:usable |compatible )?wheels|found wheels for `)
	builtPattern   = regexp.MustCompile("Failed to (?:build|prepare)[^`]*`([^`@]+)")
	errorPattern   = regexp.MustCompile(`(?m)^error: `)
	raisedPattern  = regexp.MustCompile(`^[A-Za-z_][\w.]*(?:Error|Exception): |(?:^|: )(?:fatal )?(?:error|ERROR): `)
	compilerLack   = regexp.MustCompile(`Unknown compiler\(s\)|command '\S*(?:cc|g\+\+|clang|c\+\+)' failed: No such file|No such file or directory: '\S*(?:cc|g\+\+|clang|c\+\+)'|error: linker .cc. not found`)
	headerLack     = regexp.MustCompile(`fatal error: (\S+): No such file`)
	hashPattern    = regexp.MustCompile("Hash mismatch for `([^`@=]+)")
)

// common explains the failures that are the same for every installer.
func (in *installation) common(t *trouble, r *requirement) string {
	switch {
	case t.text != "":
		return t.text
	case strings.Contains(t.output, "No space left on device"), strings.Contains(t.output, "os error 28"), strings.Contains(t.output, "ENOSPC"):
		return in.s.fullSentence(r.name)
	case process.IsOutOfProcesses(t.output):
		t.fatal = true
		return fmt.Sprintf("%s could not be installed: %s", r.name, process.OutOfProcesses)
	case t.memory, strings.Contains(t.output, "Cannot allocate memory"), strings.Contains(t.output, "os error 12)"):
		_, limit := process.Memory()
		return fmt.Sprintf("%s could not be installed: the sandbox's memory limit of %d MiB was reached. Create a sandbox with more memory_mb.", r.name, limit>>20)
	}
	return ""
}

// explain interprets the messages of uv.
func (uvTool) explain(in *installation, t *trouble, r *requirement) string {
	if text := in.common(t, r); text != "" {
		return text
	}
	python := in.s.cfg.Python.Version()
	text := flat(fromError(t.output))
	switch {
	case strings.Contains(text, "Hash mismatch"):
		return fmt.Sprintf("The file from the index for %s does not match its published hash, so it was not installed.", named(hashPattern, text, r.name))
	case strings.Contains(text, "invalid package format"):
		return fmt.Sprintf("The file from the index for %s is not a valid package.", r.name)
	case strings.Contains(text, "Failed to build"), strings.Contains(text, "build backend"):
		return unbuilt(named(builtPattern, text, r.name), r.name, python, t.output)
	case statusPattern.MatchString(text):
		m := statusPattern.FindStringSubmatch(text)
		// No worker is connected, or the index does not answer; other statuses concern only this package.
		t.index, t.fatal = m[1] == "504", t.fatal || m[1] == "503"
		if t.reason == "" {
			t.reason = in.reason(m[2], m[1])
		}
		return fmt.Sprintf("The package index could not deliver the files for %s: %s", r.name, t.reason)
	case missingPattern.MatchString(text):
		missing := farm.NormalPackage(farm.ManagerPip, missingPattern.FindStringSubmatch(text)[1])
		if missing == r.name {
			return r.name + " was not found in the package index: check its name." + in.orNode()
		}
		return fmt.Sprintf("%s needs %s, which was not found in the package index.", r.name, missing)
	case wheelPattern.MatchString(text) && !strings.Contains(text, "depends on Python"):
		return fmt.Sprintf("%s has no wheel for Python %s on this platform, and no source to build it from.", named(wheelPattern, text, r.name), python)
	case strings.Contains(text, "Failed to fetch"), strings.Contains(text, "error sending request"), strings.Contains(text, "Request failed"), strings.Contains(text, "Failed to download"):
		// An interrupted download does not affect other packages.
		t.index = t.took > slowTrouble || !strings.Contains(text, "Failed to download") && !strings.Contains(text, "/pypi/files/")
		return fmt.Sprintf("The package index is not reachable: the files for %s could not be downloaded. Try again later.", r.name)
	case strings.Contains(text, "depends on Python") && pythonPattern.MatchString(text) && !onlyPattern.MatchString(text):
		m := pythonPattern.FindStringSubmatch(text)
		return fmt.Sprintf("%s needs Python%s; this image has Python %s.", r.name, strings.TrimRight(m[2], " ,."), python)
	case onlyPattern.MatchString(text) && strings.Contains(text, r.name):
		return fmt.Sprintf("No version of %s fits %q: %s.", r.name, r.asked, execution.Cut(onlyPattern.FindStringSubmatch(text)[1], 300))
	case strings.Contains(text, "No solution found"), strings.Contains(text, "incompatible"):
		_, why, _ := strings.Cut(text, "cause: ")
		why, _, _ = strings.Cut(why, " hint: ")
		return execution.Cut(fmt.Sprintf("%s conflicts with other required packages: %s", r.name, why), maxMessageBytes)
	}
	return execution.Cut(fmt.Sprintf("%s could not be installed: %s", r.name, strings.TrimPrefix(text, "error: ")), maxMessageBytes)
}

// orNode says, where a package that was asked for may be one of Node, how such are installed: pip is the default in images with npm, too.
func (in *installation) orNode() string {
	if process.LookPath(in.s.cfg.Image, "npm") == "" || in.Spec.Install.Auto {
		return ""
	}
	return " It is the index of Python (pip); packages of Node are installed with manager npm."
}

// named returns the name that a pattern finds, or else the given name.
func named(pattern *regexp.Regexp, text, other string) string {
	if m := pattern.FindStringSubmatch(text); len(m) > 1 && m[1] != "" {
		return m[1]
	}
	return other
}

// fromError returns the text from the installer's first own error on; errors of a build are indented.
func fromError(text string) string {
	if at := errorPattern.FindStringIndex(text); at != nil {
		return text[at[0]:]
	}
	return text
}

// flat joins a text to one line.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }

// unbuilt is the message about a package that could be built only, and could not: built, with its version if that is known, which the
// requested one needs or is.
func unbuilt(built, requested, python, output string) string {
	built, version, _ := strings.Cut(built, "==")
	what := strings.TrimSpace(built + " " + version)
	if farm.NormalPackage(farm.ManagerPip, built) == requested {
		what += " has"
	} else {
		what = requested + " needs " + what + ", which has"
	}
	why := lastLines(output)
	if compilerLack.MatchString(output) {
		why = "this image has no compiler."
	} else if m := headerLack.FindStringSubmatch(output); m != nil {
		why = fmt.Sprintf("this image has no header %s, which belongs to a C library.", execution.Cut(m[1], 100))
	}
	return fmt.Sprintf("%s no wheel for Python %s on %s/%s (another version may have one), and building it failed: %s", what, python, runtime.GOOS, runtime.GOARCH, why)
}

// lastLines returns the last lines of a build's output, from the error on if they have one, and no file that is removed with the build.
func lastLines(text string) string {
	text, _, _ = strings.Cut(fromError(text), "\nhint:")
	for _, stream := range []string{"[stdout]\n", "[stderr]\n"} { // before them uv says which step of the build it was
		if _, printed, ok := strings.Cut(text, stream); ok {
			text = printed
		}
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "A full log can be found at ") {
			lines = append(lines, line)
		}
	}
	lines = lines[max(0, len(lines)-buildLines):]
	lines = lines[max(0, slices.IndexFunc(lines, raisedPattern.MatchString)):]
	words := strings.Join(lines, "\n")
	if over := len(words) - maxMessageBytes/2; over > 0 {
		words = "…" + strings.ToValidUTF8(words[over:], "")
	}
	return words
}

// reason asks the index why it refused a request: its answer has a sentence, which installers do not show.
func (in *installation) reason(url, status string) string {
	printed := "it answered with status " + status + "."
	if !strings.HasPrefix(url, "http://"+in.s.cfg.IndexAddr+"/") {
		return printed
	}
	ctx, cancel := context.WithTimeout(in.s.life, reasonTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return printed
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return printed
	}
	defer func() { _ = res.Body.Close() }()
	raw, _ := io.ReadAll(io.LimitReader(res.Body, maxMessageBytes/2))
	text := flat(strings.ToValidUTF8(string(raw), "\uFFFD"))
	if res.StatusCode < http.StatusBadRequest || text == "" || strings.HasPrefix(text, "<") || strings.HasPrefix(text, "{") {
		return printed
	}
	return text
}

// isFull reports whether a file system has no space left.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// fullSentence returns the error that something does not fit, and which limit to raise.
func (s *Installer) fullSentence(what string) string {
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.HomeDir, &st); err != nil || st.Bsize <= 0 {
		return what + " does not fit: the disk of the sandbox is full. Create a sandbox with a larger disk_mb."
	}
	return fmt.Sprintf("%s does not fit: the sandbox's disk for packages, %d MiB (four times disk_mb), is full. Create a sandbox with a larger disk_mb.",
		what, st.Blocks*uint64(st.Bsize)>>20) //nolint:gosec // positive
}

// fileTrouble explains why a file of the installation could not be created.
func (in *installation) fileTrouble(err error) string {
	if isFull(err) {
		return in.s.fullSentence("The installation")
	}
	return "The installation could not be prepared: " + err.Error() + "."
}
