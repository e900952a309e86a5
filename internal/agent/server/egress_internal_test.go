package server

import (
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

func TestNoWorkerIsSaid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := New(Config{Workspace: dir, RunDir: filepath.Join(dir, "r"), HomeDir: dir, TmpDir: dir, Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	g, err := s.openEgress("127.0.0.1:0", 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	defer s.endAll()
	began := time.Now()
	res, err := http.Get("http://" + g.listener.Addr().String() + "/pypi/simple/x/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if raw, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusServiceUnavailable || string(raw) != noWorker || time.Since(began) > 5*time.Second {
		t.Errorf("%s %q after %v", res.Status, raw, time.Since(began))
	}
}
