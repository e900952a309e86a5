package images_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/images"
)

func TestProgramIsRefused(t *testing.T) {
	t.Parallel()
	down := errors.New("the index is down")
	for name, c := range map[string]struct {
		arch string
		err  error
		data string
		want string
	}{
		"UnknownArchitecture": {"s390x", nil, "", "no build for linux/s390x"},
		"IndexDown":           {"amd64", down, "", "the index is down"},
		"WrongHash":           {"x86_64", nil, "not a wheel", "SHA-256"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := images.Installer(t.Context(), func(context.Context, string, string, string) (io.ReadCloser, int64, error) {
				return io.NopCloser(bytes.NewReader([]byte(c.data))), int64(len(c.data)), c.err
			}, c.arch)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one with %q", err, c.want)
			}
		})
	}
}
