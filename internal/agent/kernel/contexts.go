package kernel

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Contexts lists the contexts, the oldest first.
func (ks *Kernels) Contexts() []farm.CodeContext {
	list := []farm.CodeContext{}
	for _, at := range ks.byAge() {
		list = append(list, farm.CodeContext{Name: at.context, Language: at.language, Cwd: at.cwd})
	}
	return list
}

// Create makes a context, and starts its kernel in the background. An empty Cwd is the workspace, and a relative one is below it. Creating a
// context again changes nothing; with another Cwd it is a conflict. The errors are for the caller.
func (ks *Kernels) Create(c farm.CodeContext) (farm.CodeContext, error) {
	key, err := ks.normalize(c.Name, c.Language)
	if err != nil {
		return c, err
	}
	cwd := c.Cwd
	if !filepath.IsAbs(cwd) {
		cwd = filepath.Join(ks.cfg.Workspace, cwd)
	}
	if err := checkDir(cwd); err != nil {
		return c, err
	}
	ks.mu.Lock()
	at, err := ks.slotIn(key, cwd)
	if err == nil && at.cwd != cwd {
		err = farm.Conflictf("The sandbox has a context %q already, whose directory is %s.", execution.Cut(key.context, 64), at.cwd)
	}
	ks.mu.Unlock()
	if err != nil {
		return c, err
	}
	ks.kernelOf(at)
	return farm.CodeContext{Name: at.context, Language: at.language, Cwd: at.cwd}, nil
}

// checkDir reports whether code can start in a directory.
func checkDir(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return farm.Invalidf("cwd %q is not there", execution.Cut(path, 256))
	case err == nil && !info.IsDir():
		return farm.Invalidf("cwd %q is no directory", execution.Cut(path, 256))
	case err != nil || unix.Access(path, unix.X_OK) != nil:
		return farm.Invalidf("cwd %q cannot be entered", execution.Cut(path, 256))
	}
	return nil
}

// Remove ends the kernel of a context and forgets the context. Code that runs in it ends, and code that waits for it does not run.
func (ks *Kernels) Remove(name, language string) error {
	key, err := ks.normalize(name, language)
	if err != nil {
		return err
	}
	ks.mu.Lock()
	at := ks.slots[key]
	delete(ks.slots, key)
	ks.mu.Unlock()
	if at == nil {
		return farm.NotFoundf("The sandbox has no context %q in %s.", execution.Cut(name, 64), key.language)
	}
	at.remove(ks.cfg.Reaper)
	return nil
}

// remove ends the kernel of a slot. Nothing runs in the slot any more.
func (at *slot) remove(r *process.Reaper) {
	at.mu.Lock()
	at.removed = true
	k := at.kernel
	at.mu.Unlock()
	if k != nil {
		k.stopOnPurpose(r)
	}
}

// isRemoved reports whether nothing may run in the slot any more.
func (at *slot) isRemoved() bool {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.removed
}
