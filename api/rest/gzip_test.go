package rest_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
)

// Neither a few bytes nor a sparse file of any size is worth the time.
func TestCompressesBySize(t *testing.T) {
	t.Parallel()
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	c.Request.Header.Set("Accept-Encoding", "gzip")
	for size, want := range map[int64]bool{-1: true, 1<<10 - 1: false, 1 << 10: true, 1 << 30: true, 1<<30 + 1: false, 1 << 62: false} {
		if got := rest.Compresses(c, size); got != want {
			t.Errorf("Compresses of %d bytes = %v, want %v", size, got, want)
		}
	}
}
