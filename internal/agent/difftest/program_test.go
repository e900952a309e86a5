package difftest_test

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program is a series of cells that run one after the other in a fresh namespace.
type program struct {
	Name  string   `json:"-"`
	Cells []string `json:"cells"`
	// Settle: its output bypasses Python's streams (child processes, C code). ipykernel shows it a little later, in any order.
	Settle bool `json:"settle"`
	// Restart: it leaves the kernel in a state that other programs would notice.
	Restart bool `json:"restart"`
	Seconds int  `json:"seconds"` // limit of a cell
}

// cellSeconds is far more than any cell takes on a busy machine.
const cellSeconds = 30

// readPrograms reads the programs of a file. `# %% name` begins a program, with its options after the name; `# %%` begins its next cell.
func readPrograms(t *testing.T, path string) []program {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var programs []program
	subject := strings.TrimSuffix(filepath.Base(path), ".ipy")
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, "# %%"); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				p := program{Name: subject + "/" + words[0], Seconds: cellSeconds}
				for _, option := range words[1:] {
					switch option {
					case "settle":
						p.Settle = true
					case "restart":
						p.Restart = true
					default:
						t.Fatalf("%s: %s: unknown option %q", path, p.Name, option)
					}
				}
				if slices.ContainsFunc(programs, func(q program) bool { return q.Name == p.Name }) {
					t.Fatalf("%s: there are two programs %s", path, p.Name)
				}
				programs = append(programs, p)
			}
			if last := len(programs) - 1; last >= 0 {
				programs[last].Cells = append(programs[last].Cells, "")
			}
			continue
		}
		if len(programs) == 0 {
			continue // comments at the beginning of the file
		}
		p := &programs[len(programs)-1]
		p.Cells[len(p.Cells)-1] += line + "\n"
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for i := range programs {
		for j, code := range programs[i].Cells {
			programs[i].Cells[j] = strings.TrimRight(code, "\n")
		}
	}
	return programs
}
