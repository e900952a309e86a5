package verbs

import (
	"os"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
)

// secrets reads the values of the secrets that flags name: from the environment or from files, never from the arguments, which every program
// of the machine can read.
func (f *specFlags) secrets(getenv func(string) string) (map[string]wire.Secret, error) {
	if len(f.hidden) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	out := map[string]wire.Secret{}
	for _, text := range f.hidden {
		text, file, fromFile := strings.Cut(text, "@")
		name, place, ok := strings.Cut(text, "=")
		host, header, both := strings.Cut(place, ":")
		if _, twice := out[name]; !ok || !both || name == "" || twice {
			return nil, usagef("--secret %q: write each secret once, as NAME=HOST:HEADER or NAME=HOST:HEADER@FILE", text)
		}
		value := getenv(name)
		if fromFile {
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, usagef("--secret %s: %v", name, err)
			}
			value = strings.TrimRight(string(content), "\r\n")
		}
		if value == "" {
			return nil, usagef("--secret %s: it has no value: set the variable %s, or name a file: %s@FILE", name, name, text)
		}
		out[name] = wire.Secret{Host: host, Header: header, Value: value}
	}
	return out, nil
}
