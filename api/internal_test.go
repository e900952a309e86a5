package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// slowAudit is a store that takes nothing until it is released.
type slowAudit struct {
	begun, release chan struct{}
	entries        map[string]int // that were written, by tenant
	missed         int
}

func (s *slowAudit) AppendAudit(_ context.Context, entries []farm.AuditEntry) error {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-s.release
	for _, e := range entries {
		s.entries[e.Tenant]++
		s.missed += e.Missed
	}
	return nil
}

// While Redis is slow, the flood of one tenant took all the places in memory, and entries of others were dropped.
func TestOneTenantLeavesRoomInTheAudit(t *testing.T) {
	t.Parallel()
	to := &slowAudit{begun: make(chan struct{}, 1), release: make(chan struct{}), entries: map[string]int{}}
	a := &auditor{store: to, log: slog.New(slog.DiscardHandler), now: time.Now}
	a.add(t.Context(), farm.AuditEntry{Tenant: "first"})
	<-to.begun // nothing leaves the queue any more
	for range auditWaiting {
		a.add(t.Context(), farm.AuditEntry{Tenant: "loud"})
	}
	a.add(t.Context(), farm.AuditEntry{Tenant: "quiet"})
	close(to.release)
	a.close()
	if to.entries["quiet"] != 1 || to.entries["loud"] != auditWaiting/2 || to.missed != auditWaiting/2 {
		t.Errorf("written: %v, %d missed", to.entries, to.missed)
	}
	a.add(t.Context(), farm.AuditEntry{Tenant: "loud"}) // there is room again
	a.close()
	if to.entries["loud"] != auditWaiting/2+1 {
		t.Errorf("written: %v", to.entries)
	}
}

// Forms come from callers: each part has a path that the service judges, or the form is refused with a sentence.
func FuzzForm(f *testing.F) {
	part := func(head, content string) string { return "--b\r\n" + head + "\r\n\r\n" + content + "\r\n" }
	for _, seed := range []string{
		"", "--b--\r\n", part(`Content-Disposition: form-data; name="f"; filename="a.txt"`, "x") + "--b--\r\n",
		part(`Content-Disposition: form-data; name="path"`, "dir") + part(`Content-Disposition: form-data; name="f"; filename="../a"`, "x") + "--b--\r\n",
		part(`Content-Disposition: form-data; name="f"; filename*=UTF-8''%2e%2e%2fx`, "x"), part(`Content-Disposition: form-data; filename="a`, "x"),
		part(`Content-Disposition: attachment`, "x"), part("Content-Transfer-Encoding: quoted-printable\r\nContent-Disposition: form-data; name=path", "=2e=2e"), "--b\r\n\r\n--b\r\n\r\n--b",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		body := bytes.NewReader(in)
		form := &form{body: body, reader: rest.NewParts(t.Context(), body, "b")}
		for parts := 0; ; parts++ {
			if parts > len(in) {
				t.Fatal("the form does not end")
			}
			part, err := form.next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				if farm.CodeOf(err) != farm.CodeInvalid {
					t.Fatalf("the form was refused with %q: %v", farm.CodeOf(err), err)
				}
				return
			}
			if len(part.Path) > len(in) {
				t.Fatalf("a path of %d bytes", len(part.Path))
			}
			_, _ = io.Copy(io.Discard, part.Content)
		}
	})
}
