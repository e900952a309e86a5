package farmd

import (
	"context"
	"fmt"
	"net/http"

	"github.com/sandfarm/sandfarm/internal/index"
)

// doctorIndex requests a project from the package indexes as a sandbox would.
func doctorIndex(ctx context.Context, s *Settings) []Finding {
	ctx, done := context.WithTimeout(ctx, doctorTimeout)
	defer done()
	python := Finding{What: "Python index", Status: StatusOK, Found: s.Index.PyPIURL}
	node := Finding{What: "npm registry", Status: StatusOK, Found: s.Index.NpmURL}
	server, err := index.Serve(ctx, s.Index)
	if err != nil {
		python.Status, python.Found, python.Advice = StatusProblem, err.Error(), "Correct the settings under [index]."
		return []Finding{python}
	}
	defer func() { _ = server.Close() }()
	if err := fetch(ctx, server.URL()+"pip/"); err != nil {
		python.Status, python.Found = StatusNote, fmt.Sprintf("%s: %v", s.Index.PyPIURL, err)
		python.Advice = "Sandboxes get packages only from the cache, and images cannot be built. Set SANDFARM_PYPI_INDEX_URL to an index that this host can reach."
	}
	if err := fetch(ctx, server.NpmURL()+"npm"); err != nil {
		node.Status, node.Found = StatusNote, fmt.Sprintf("%s: %v", s.Index.NpmURL, err)
		node.Advice = "Only images with Node need it. Set SANDFARM_NPM_REGISTRY to a registry that this host can reach."
	}
	return []Finding{python, node}
}

func fetch(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{}).Do(request)
	if err != nil {
		return fmt.Errorf("it does not answer within %s", doctorTimeout)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it does not answer like an index (%s)", answer.Status)
	}
	return nil
}
