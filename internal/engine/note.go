package engine

import (
	"context"
	"maps"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A note holds labels that a sandbox got after its container was created, since the labels of a container cannot be changed.
// It is an empty volume, so it exists as long as the engine's own data, and code in the sandbox cannot change it.

func (e *Engine) noteVolume(sandbox string) string { return e.namespace + "-note-" + sandbox }

// Note stores labels of a sandbox. It does not change an existing note.
func (e *Engine) Note(ctx context.Context, sandbox, tenant string, labels map[string]string) error {
	all := map[string]string{}
	maps.Copy(all, labels)
	maps.Copy(all, map[string]string{LabelNamespace: e.namespace, LabelRole: RoleNote, LabelSandbox: sandbox, LabelTenant: tenant})
	return e.call(ctx, createTimeout, "create note", func(ctx context.Context) error {
		_, err := e.cli.VolumeCreate(ctx, volume.CreateOptions{Name: e.noteVolume(sandbox), Labels: all})
		return err
	})
}

// Noted reads a sandbox's note; CodeNotFound when there is none.
func (e *Engine) Noted(ctx context.Context, sandbox string) (map[string]string, error) {
	labels, err := e.volumeLabels(ctx, e.noteVolume(sandbox))
	if err == nil && (labels[LabelRole] != RoleNote || labels[LabelSandbox] != sandbox) {
		return nil, farm.NotFoundf("there is no note of sandbox %s", sandbox)
	}
	return labels, err
}

// Notes lists the sandboxes that have a note.
func (e *Engine) Notes(ctx context.Context) ([]string, error) {
	var list volume.ListResponse
	err := e.call(ctx, readTimeout, "list notes", func(ctx context.Context) error {
		var err error
		list, err = e.cli.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(
			filters.Arg("label", LabelNamespace+"="+e.namespace), filters.Arg("label", LabelRole+"="+RoleNote),
		)})
		return err
	})
	out := make([]string, 0, len(list.Volumes))
	for _, v := range list.Volumes {
		out = append(out, v.Labels[LabelSandbox])
	}
	return out, err
}

// RemoveNote removes a sandbox's note. A missing note is not an error.
func (e *Engine) RemoveNote(ctx context.Context, sandbox string) error {
	return e.removeVolume(ctx, e.noteVolume(sandbox), 0)
}
