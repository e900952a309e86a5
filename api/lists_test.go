package api_test

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestListsAreFiltered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	named := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"name":"mine"}`)
	other := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"name":"mine too"}`)
	made := get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+named.Sandbox.ID+"/execute?wait=20", `{"code":"make a.txt"}`)
	get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+named.Sandbox.ID+"/execute", `{"code":"block"}`)
	canceled := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+named.Sandbox.ID+"/execute", `{"code":"print 1"}`)
	get[wire.Job](b, http.StatusOK, "DELETE", "/v1/jobs/"+canceled.ID, nil)
	at := func(t time.Time) string { return url.QueryEscape(t.Format(time.RFC3339Nano)) }
	for target, want := range map[string]int{
		"/v1/sandboxes?name=mine":                                                 1,
		"/v1/sandboxes?name=min":                                                  0,
		"/v1/sandboxes?name=mine%20too&state=ready":                               1,
		"/v1/sandboxes?created_after=" + at(named.Sandbox.CreatedAt):              1,
		"/v1/sandboxes?created_before=" + at(other.Sandbox.CreatedAt):             1,
		"/v1/sandboxes?created_after=2001-01-01T00:00:00%2B01:00":                 2,
		"/v1/jobs?state=completed,canceled&kind=execute":                          2,
		"/v1/jobs?state=completed&state=canceled&kind=execute&kind=create":        4,
		"/v1/jobs?kind=create,execute":                                            5,
		"/v1/jobs?created_after=" + at(made.CreatedAt):                            2,
		"/v1/jobs?created_before=" + at(made.CreatedAt):                           2,
		"/v1/jobs?state=failed,lost":                                              0,
		"/v1/artifacts?name=a.txt":                                                1,
		"/v1/artifacts?state=failed,lost":                                         0,
		"/v1/artifacts?state=completed,failed":                                    1,
		"/v1/artifacts?name=b.txt":                                                0,
		"/v1/artifacts?created_before=2001-01-01T00:00:00Z":                       0,
		"/v1/artifacts?created_after=2001-01-01T00:00:00Z&job_id=" + made.ID:      1,
		"/v1/jobs?job_id=" + made.ID + "&created_before=" + at(made.CreatedAt):    0,
		"/v1/jobs?job_id=" + made.ID + "&state=canceled,completed&kind=execute":   1,
		"/v1/jobs?sandbox_id=" + other.Sandbox.ID + "&state=completed&state=lost": 1,
	} {
		if list := get[wire.List[struct{ ID string }]](b, http.StatusOK, "GET", target, nil); len(list.Items) != want {
			t.Errorf("%s gives %d entries, want %d", target, len(list.Items), want)
		}
	}
	for _, target := range []string{
		"/v1/jobs?state=completed,nap", "/v1/jobs?kind=create,nap", "/v1/jobs?created_after=yesterday", "/v1/sandboxes?created_before=", "/v1/artifacts?created_after=2026-11-22",
		"/v1/jobs?sandboxid=" + named.Sandbox.ID, "/v1/sandboxes?states=ready", "/v1/artifacts?wait=1", "/v1/artifacts?state=nap", "/v1/jobs?cursor=abc", "/v1/sandboxes?cursor=1t",
	} {
		if p := b.problemOf("GET", target, nil); p.Code != string(farm.CodeInvalid) {
			t.Errorf("%s: %+v", target, p)
		}
	}
	close(b.worker.gate)
}
