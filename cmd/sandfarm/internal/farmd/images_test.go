package farmd_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
)

func TestAllowedImagesAreIDs(t *testing.T) {
	t.Parallel()
	id := "sha256:" + strings.Repeat("a1", 32)
	if got := load(t, file(t, "[images]\nallowed = [\""+id+"\"]")).Worker.AllowedImages; !slices.Equal(got, []string{id}) {
		t.Errorf("workers may use %q", got)
	}
	for _, wrong := range []string{"python", "sandfarm/python:latest", "repo@" + id, id + "0", strings.ToUpper(id), id[:20], ""} {
		if _, err := farmd.Load(file(t, "[images]\nallowed = [\""+wrong+"\"]")); err == nil || !strings.Contains(err.Error(), "images.allowed contains") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
