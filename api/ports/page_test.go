package ports_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestPagesEscapeTextAndTryAgain(t *testing.T) {
	t.Parallel()
	for status, again := range map[int]string{http.StatusBadGateway: "3", http.StatusServiceUnavailable: "3", http.StatusNotFound: ""} {
		w := httptest.NewRecorder()
		testbed.Must(t, ports.WritePage(w, status, `<script>"100%s"</script>`, `<b>`))
		body := w.Body.String()
		if w.Code != status || w.Header().Get("Refresh") != again || strings.Contains(body, "tries again every 3 seconds") != (again != "") {
			t.Errorf("%d, Refresh %q\n%s", w.Code, w.Header().Get("Refresh"), body)
		}
		if strings.Contains(body, "<script") || strings.Contains(body, "<b>") || !strings.Contains(body, "100%s") || strings.Contains(body, "%!") {
			t.Errorf("text is not escaped, or the page is not filled:\n%s", body)
		}
	}
}
