package install

import (
	"path/filepath"
	"regexp"
	"slices"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// uvTool installs with uv, which needs only Python from the image.
type uvTool struct{}

var _ pyTool = uvTool{}

// versionPattern matches the versions that uv can parse: others are not passed to it.
var versionPattern = regexp.MustCompile(`^(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?$`)

// resolve lets uv write a pinned list. uv prefers the pins that are already in the output file.
func (uvTool) resolve(in *installation, wanted []*requirement, there map[string]distribution) (map[string]pin, *trouble) {
	var preferred []string
	for name, d := range there {
		if versionPattern.MatchString(d.version) {
			preferred = append(preferred, name+"=="+d.version)
		}
	}
	slices.Sort(preferred)
	ask, err := in.writeLines("wanted.txt", requirementLines(wanted))
	if err != nil {
		return nil, &trouble{text: in.fileTrouble(err)}
	}
	answer, err := in.writeLines("pinned.txt", preferred)
	if err != nil {
		return nil, &trouble{text: in.fileTrouble(err)}
	}
	t := in.step([]string{
		in.s.cfg.UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes",
		"--python", in.s.cfg.Python.Interpreter(), "--output-file", answer, ask,
	}, in.uvEnv())
	if t != nil {
		return nil, t
	}
	raw, err := readBounded(answer, process.MaxOutputBytes)
	if err != nil {
		return nil, &trouble{text: in.fileTrouble(err)}
	}
	return parsePins(string(raw)), nil
}

// fetch lets uv install what was resolved; the files must match the hashes that the index published.
func (uvTool) fetch(in *installation, pins map[string]pin, target string) *trouble {
	list, err := in.writeLines("changes.txt", pinLines(pins))
	if err != nil {
		return &trouble{text: in.fileTrouble(err)}
	}
	return in.step([]string{
		in.s.cfg.UV, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", in.s.cfg.Python.Interpreter(),
		"--target", target, "--requirements", list,
	}, in.uvEnv())
}

func (in *installation) uvEnv() []string {
	return in.s.toolEnv(in.Execution, map[string]string{
		"UV_DEFAULT_INDEX": "http://" + in.s.cfg.IndexAddr + agent.PipPath, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never",
		"UV_CACHE_DIR": filepath.Join(in.work, "cache"), "UV_NO_PROGRESS": "1", "UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "120",
		"UV_LINK_MODE": "hardlink", "UV_CONCURRENT_DOWNLOADS": "16", "NO_COLOR": "1", "TMPDIR": filepath.Join(in.work, "tmp"),
	})
}
