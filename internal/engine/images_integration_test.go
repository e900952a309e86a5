//go:build integration

package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestBuildAndImages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, name := t.Context(), strings.ReplaceAll(b.cfg.Namespace, "-", "")
	ref := b.cfg.Namespace + "/built"
	t.Cleanup(func() {
		for _, tag := range []string{":h1", ":latest"} {
			if err := b.RemoveImage(context.Background(), ref+tag); err != nil {
				t.Error(err)
			}
		}
	})
	var progress []farm.Progress
	err := b.Build(ctx, engine.BuildSpec{
		Context: fstest.MapFS{
			"Dockerfile":   {Data: []byte("ARG BASE=nothing\nFROM ${BASE}\nARG COLOUR\nLABEL colour=$COLOUR\nCOPY dir/file /file\n")},
			"dir/file":     {Data: []byte("content")},
			"dir/sub/more": {Data: []byte("content")},
		},
		Tags: []string{ref + ":h1", ref + ":latest"}, Args: map[string]string{"BASE": b.image, "COLOUR": "blue"}, Network: "none",
		Labels: map[string]string{engine.LabelImage: name, engine.LabelLanguages: "python, bash", engine.LabelDescription: "A test."},
	}, func(p farm.Progress) { progress = append(progress, p) })
	testbed.Must(t, err)
	testbed.Check(t, len(progress) != 0 && progress[len(progress)-1].Total >= 5, "progress %+v", progress)
	if there, err := b.HasImage(ctx, ref+":h1"); !there || err != nil {
		t.Errorf("built image exists: %v, error %v", there, err)
	}
	if there, err := b.HasImage(ctx, ref+":h2"); there || err != nil {
		t.Errorf("image that was never built exists: %v, error %v", there, err)
	}
	images, err := b.Images(ctx)
	testbed.Must(t, err)
	found := 0
	for _, i := range images {
		if i.Name == name {
			found++
			if i.Ref != ref+":h1" || !strings.HasPrefix(i.ID, "sha256:") || i.Description != "A test." || cmp.Diff([]string{"python", "bash"}, i.Languages) != "" || i.CreatedAt.IsZero() {
				t.Errorf("image %+v", i)
			}
		}
	}
	testbed.Diff(t, "image is listed, times", 1, found)
	err = b.Build(ctx, engine.BuildSpec{
		Context: fstest.MapFS{"Dockerfile": {Data: []byte("ARG BASE\nFROM ${BASE}\nRUN nothing-to-run-it\n")}},
		Args:    map[string]string{"BASE": b.image}, Network: "none",
	}, nil)
	testbed.Check(t, err != nil && strings.Contains(err.Error(), "Step 3/3"), "failed build: %v, want the last lines", err)
}

func TestImportThatIsCutShort(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cut := errors.New("the tar is truncated")
	err := b.Import(t.Context(), b.cfg.Namespace+"/cut:1", io.MultiReader(bytes.NewReader(make([]byte, 512)), broken{cut}))
	testbed.Check(t, err != nil, "import of half a tar returned no error")
	there, err := b.HasImage(t.Context(), b.cfg.Namespace+"/cut:1")
	testbed.Check(t, !there && err == nil, "image of half a tar exists: %v, error %v", there, err)
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }
