// Package images contains the farm's sandbox images and builds them. Each folder is one image: a
// Dockerfile, the files it copies, a README and a smoke test. An image is named by the hash of its sources, so an existing
// image is never rebuilt, and a changed image always has a new name. All are built on one base, which comes from a registry or, without one, from
// Debian's packages.
package images

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

//go:embed node python python-cuda
var files embed.FS

// hashText is how many characters of the hash a tag holds: 48 bits distinguish the builds of one image.
const hashText = 12

// Definition is one image that can be built.
type Definition struct {
	Name        string
	Description string
	Languages   []string
	Hash        string // of its source files, 12 hexadecimal characters
	Files       fs.FS  // the folder: the build's context
}

// Ref is the name of the image in an engine.
func (d Definition) Ref() string { return "sandfarm/" + d.Name + ":" + d.Hash }

// List returns all images that can be built, sorted by name.
func List() ([]Definition, error) {
	folders, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	list := make([]Definition, 0, len(folders))
	for _, folder := range folders {
		d, err := define(folder.Name())
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// Find returns the image with a name; CodeNotFound if there is none.
func Find(name string) (Definition, error) {
	list, err := List()
	if err != nil {
		return Definition{}, err
	}
	names := make([]string, 0, len(list))
	for _, d := range list {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return Definition{}, farm.NotFoundf("no image %q comes with the farm; there are: %s", name, strings.Join(names, ", "))
}

func define(name string) (Definition, error) {
	tree, err := fs.Sub(files, name)
	if err != nil {
		return Definition{}, fmt.Errorf("open image %s: %w", name, err)
	}
	hash, err := hashOf(tree)
	if err != nil {
		return Definition{}, fmt.Errorf("hash image %s: %w", name, err)
	}
	dockerfile, err := fs.ReadFile(tree, "Dockerfile")
	if err != nil {
		return Definition{}, fmt.Errorf("read image %s: %w", name, err)
	}
	d := Definition{Name: name, Hash: hash, Files: tree, Description: label(string(dockerfile), "sandfarm.description")}
	d.Languages = strings.Split(label(string(dockerfile), "sandfarm.languages"), ",")
	return d, nil
}

// label reads the value of a label from a Dockerfile: name="value".
func label(dockerfile, name string) string {
	_, rest, _ := strings.Cut(dockerfile, name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// notBuilt reports whether a file of a folder does not affect the image.
func notBuilt(name string) bool {
	return slices.Contains([]string{"README.md", "smoke.py"}, path.Base(name))
}

// hashOf hashes the names and contents of an image's source files.
func hashOf(tree fs.FS) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || notBuilt(name) {
			return err
		}
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(sum, "%d %s %d\n%s", len(name), name, len(data), data)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:hashText], err
}
