#!/bin/sh
# The direct dependencies of go.mod and their lines in docs/dependencies.md.
#
#   deploy/dependencies.sh check     fails if a dependency has no line, a line has no dependency, or the number of packages is wrong
#   deploy/dependencies.sh measure   prints for each: packages of its module in the program, packages that only it brings, and
#                                    the code and data of those in the program
set -eu
cd "$(dirname "$0")/.."
page=docs/dependencies.md
main=./cmd/sandfarm

direct() { go list -m -f '{{if not (or .Indirect .Main)}}{{.Path}}{{end}}' all | sed '/^$/d' | sort; }

check() {
    listed=$(sed -n 's/^| `\([^`]*\)` .*/\1/p' "$page" | sort)
    wrong=0
    for module in $(direct); do
        printf '%s\n' "$listed" | grep -qxF "$module" && continue
        printf '%s: %s has no line: say why it is needed, what it costs (deploy/dependencies.sh measure) and what would replace it\n' "$page" "$module" >&2
        wrong=1
    done
    for module in $listed; do
        direct | grep -qxF "$module" && continue
        printf '%s: %s is no longer a direct dependency: remove its line\n' "$page" "$module" >&2
        wrong=1
    done
    number=$(GOOS=linux GOARCH=amd64 go list -deps -f '{{if and .Module (not .Module.Main)}}{{.ImportPath}}{{end}}' "$main" | sed '/^$/d' | wc -l)
    stated=$(sed -n 's/.*its modules bring \([0-9]*\) packages.*/\1/p' "$page")
    if [ "$number" -ne "${stated:-0}" ]; then
        printf '%s: the modules bring %s packages, and the page says %s: correct it, and the figures of what changed\n' "$page" "$number" "${stated:-none}" >&2
        wrong=1
    fi
    return $wrong
}

measure() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    go list -deps -f '{{.ImportPath}} {{with .Module}}{{.Path}}{{else}}std{{end}}{{range .Imports}} {{.}}{{end}}' "$main" >"$work/packages"
    go build -o "$work/program" "$main"
    go tool nm -size "$work/program" | sed 's/^ *[0-9a-f]* *//' >"$work/symbols"
    direct | awk -v packages="$work/packages" -v symbols="$work/symbols" '
        # reach counts the packages of the program, and their bytes in size, as if a module were not there.
        function reach(without,   n, i, at, list, seen, count) {
            split("", seen); list[1] = root; n = 1; count = 0; size = 0
            while (n > 0) {
                at = list[n--]
                if (at in seen || !(at in module) || module[at] == without) continue
                seen[at]; count++; size += bytes[at]
                for (i = 1; i <= imports[at, 0]; i++) list[++n] = imports[at, i]
            }
            return count
        }
        BEGIN {
            while ((getline line < packages) > 0) {
                fields = split(line, f, " "); module[f[1]] = f[2]; own[f[2]]++; root = f[1]
                for (i = 3; i <= fields; i++) imports[f[1], i - 2] = f[i]
                imports[f[1], 0] = fields - 2
            }
            while ((getline line < symbols) > 0) {
                split(line, f, " "); name = f[3]; sub(/^(type:|go:)[^a-z]*/, "", name); sub(/\[.*/, "", name)
                match(name, /^.*\//); folder = substr(name, 1, RLENGTH); rest = substr(name, RLENGTH + 1); sub(/\..*/, "", rest)
                gsub(/%2e/, ".", rest); bytes[folder rest] += f[1]
            }
            all = reach(""); total = size
            printf "%-56s %9s %9s %8s\n", "module", "packages", "only by", "MB"
        }
        { only = all - reach($1); printf "%-56s %9d %9d %8.2f\n", $1, own[$1], only, (total - size) / 1e6 }'
}

case ${1:-} in
check) check ;;
measure) measure ;;
*)
    printf 'usage: %s check|measure\n' "$0" >&2
    exit 2
    ;;
esac
