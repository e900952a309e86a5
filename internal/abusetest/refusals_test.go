//go:build abuse

package abusetest_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/abusetest"
)

// A sandbox of more memory than any host has is refused, and starts nothing.
func largerThanTheHost(f farm) {
	l := f.Measure(f.t, "100 creates of 64 TiB", func() {
		for range 100 {
			_, err := f.CreateSandbox(f.t.Context(), wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: new(64 << 20)}})
			if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Status != http.StatusUnprocessableEntity {
				f.t.Fatalf("answer %v", err)
			}
		}
	})
	if f.within(l, 0, mib); len(f.Containers()) > 3 {
		f.t.Errorf("containers %v", f.Containers())
	}
}

// One tenant creates sandboxes until it is refused: at its quota, while the neighbour's calls are answered.
func tooManySandboxes(f farm) {
	var made []wire.Created
	var refused []wire.Problem
	l := f.Measure(f.t, fmt.Sprintf("%d creates at a quota of %d sandboxes", 3*sandboxes, sandboxes), func() {
		for range 3 * sandboxes {
			text, status := f.post("/v1/sandboxes", `{"resources":{"memory_mb":128}}`)
			var problem wire.Problem
			var created wire.Created
			switch {
			case status == http.StatusAccepted && json.Unmarshal(text, &created) == nil:
				made = append(made, created)
			case status == http.StatusTooManyRequests && json.Unmarshal(text, &problem) == nil:
				refused = append(refused, problem)
			default:
				f.t.Fatalf("status %d: %s", status, text)
			}
		}
		for _, created := range made {
			if job, err := f.Wait(f.t.Context(), created.Job.ID); err != nil || job.State != "completed" {
				f.t.Errorf("create: %v %+v", err, job)
			}
		}
	})
	for _, created := range made {
		closing, err := f.Close(f.t.Context(), created.Sandbox.ID)
		if err == nil { // else the next round begins at the quota
			_, err = f.Wait(f.t.Context(), closing.ID)
		}
		if err != nil {
			f.t.Error(err)
		}
	}
	for _, problem := range refused {
		if problem.Code != "exhausted" || problem.Quota == nil || problem.Quota.Limit == nil || *problem.Quota.Limit != sandboxes {
			f.t.Errorf("refused with %+v", problem)
		}
	}
	if f.within(l, sandboxes, mib); len(made) > sandboxes || len(made) == 0 { // the harness has one, and those of the last row may still close
		f.t.Errorf("%d sandboxes were made; the quota is %d", len(made), sandboxes)
	}
}

// Tars of a few KB repeat a member with a name of 900,000 bytes.
func longNames(f farm) {
	const callers, members = 16, 1000
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	var member, packed bytes.Buffer
	if err := tar.NewWriter(&member).WriteHeader(&tar.Header{Name: strings.Repeat("a", 900_000), Typeflag: tar.TypeFifo, Format: tar.FormatGNU}); err != nil {
		f.t.Fatal(err)
	}
	zip := gzip.NewWriter(&packed)
	for range members {
		_, _ = zip.Write(member.Bytes()) // a buffer takes all
	}
	_ = zip.Close()
	call := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"copy_project","arguments":{"container_id":%q,"local_src_dir":"p","content_base64":%q}}}`,
		boxes[0], base64.StdEncoding.EncodeToString(packed.Bytes()))
	f.within(f.Measure(f.t, fmt.Sprintf("%d tars of %d members with names of 900 KB", callers, members), func() {
		var g errgroup.Group
		for range callers {
			g.Go(func() error {
				text, status, err := f.send(http.MethodPost, "/mcp/docker-sandbox", "application/json", strings.NewReader(call))
				if err == nil && (status != http.StatusTooManyRequests && !bytes.Contains(text, []byte("a name of 900000 bytes")) || len(text) > mib) {
					err = fmt.Errorf("status %d, %d bytes: %s", status, len(text), text[:min(len(text), 300)])
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			f.t.Error(err)
		}
	}), 0, mib)
}

// post sends a request without the client, which would repeat one that is refused.
func (f farm) post(path, body string) (text []byte, status int) {
	f.t.Helper()
	text, status, err := f.send(http.MethodPost, path, "application/json", strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	return text, status
}

// send is post with another method and another kind of body.
func (f farm) send(method, path, kind string, body io.Reader) (text []byte, status int, err error) {
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.URL()+path, body)
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Authorization", "Bearer "+abusetest.AbuserKey)
	request.Header.Set("Content-Type", kind)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err = io.ReadAll(answer.Body)
	return text, answer.StatusCode, err
}
