//go:build integration

package base_test

import (
	"context"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sandfarm/sandfarm/deploy/base"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Without a registry the base is built from Debian packages, and images can be built on it: apt-get works and Python is installed.
func TestBaseFromDebian(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Namespace: "sandfarm-test-" + farm.NewID("")})
	if err != nil {
		t.Fatal(err)
	}
	ref := "sandfarm-test/base:" + farm.NewID("")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, err := range []error{e.RemoveImage(ctx, ref+"-on"), e.RemoveImage(ctx, ref), e.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	last, count := "", 0
	begun := time.Now()
	got, err := base.EnsureBase(t.Context(), e, base.Options{Ref: ref, Source: "none"}, func(p farm.Progress) { last, count = p.Message, count+1 })
	if err != nil || got != ref {
		t.Fatalf("ref %q, error %v (last: %s)", got, err, last)
	}
	t.Logf("%s in %v, %d lines", ref, time.Since(begun).Round(time.Second), count)
	if count < 100 {
		t.Errorf("%d lines of progress, want one for each step of each package", count)
	}
	err = e.Build(t.Context(), engine.BuildSpec{
		Context: fstest.MapFS{"Dockerfile": {Data: []byte("ARG BASE\nFROM ${BASE}\n" +
			"RUN python3 -c 'import sys; assert sys.version_info[:2] == (3, 13)' && python3 -m venv /v && apt-get update\n")}},
		Args: map[string]string{"BASE": ref}, Tags: []string{ref + "-on"}, Network: "host",
	}, nil)
	if err != nil {
		t.Error(err)
	}
}
