package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// e2bMade is what a create answers with.
type e2bMade struct {
	SandboxID, TemplateID, ClientID, EnvdVersion, EnvdAccessToken, TrafficAccessToken string
}

// e2bSandbox makes a sandbox as an SDK does.
func (b *bundle) e2bSandbox(key string) e2bMade {
	b.t.Helper()
	return get[e2bMade](b, http.StatusCreated, "POST", "/e2b/v2/sandboxes", `{"templateID":"base","timeout":60,"metadata":{"team":"a b"},"envVars":{"A":"1"},"somethingNew":{}}`, "X-API-KEY", key)
}

// e2bFailure checks that a request is refused in E2B's form.
func (b *bundle) e2bFailure(status int, words, method, target string, body any, headers ...string) {
	b.t.Helper()
	answer, content := b.do(method, target, body, headers...)
	var out struct {
		Code    int
		Message string
	}
	if err := json.Unmarshal(content, &out); err != nil || answer.StatusCode != status || out.Code != status || !strings.Contains(out.Message, words) {
		b.t.Errorf("%s %s: status %d: %s", method, target, answer.StatusCode, content)
	}
	if kind := answer.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/json") {
		b.t.Errorf("%s %s: content type %s", method, target, kind)
	}
}

func TestE2BControl(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	made := b.e2bSandbox(key)
	if made.TemplateID != "python" || made.ClientID == "" || made.EnvdVersion == "" || made.EnvdAccessToken == "" || made.TrafficAccessToken == "" || strings.Trim(made.SandboxID, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		t.Errorf("%+v", made)
	}
	again := get[e2bMade](b, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+made.SandboxID+"/connect", `{"timeout":5}`, "X-API-KEY", wire.E2BKey(key))
	if again != made {
		t.Errorf("connect: %+v", again)
	}
	type shown struct {
		SandboxID, State, EndAt, StartedAt string
		CPUCount, MemoryMB, DiskSizeMB     int
		Metadata                           map[string]string
	}
	info := get[shown](b, http.StatusOK, "GET", "/e2b/sandboxes/"+made.SandboxID, nil, "X-API-KEY", key)
	if info.State != "running" || info.CPUCount < 1 || info.MemoryMB < 1 || info.DiskSizeMB < 1 || info.Metadata["team"] != "a b" {
		t.Errorf("%+v", info)
	}
	for query, want := range map[string]int{"": 1, "?metadata=team%3Da%252520b": 1, "?metadata=team%3Dc": 0, "?state=paused": 0, "?state=running,paused&template=base": 1, "?template=node": 0} {
		if list := get[[]shown](b, http.StatusOK, "GET", "/e2b/v2/sandboxes"+query, nil, "X-API-KEY", key); len(list) != want {
			t.Errorf("list %s: %d", query, len(list))
		}
	}
	if answer, _ := b.do("POST", "/e2b/sandboxes/"+made.SandboxID+"/timeout", `{"timeout":600}`, "X-API-KEY", key); answer.StatusCode != http.StatusNoContent {
		t.Errorf("timeout: %d", answer.StatusCode)
	}
	if later := get[shown](b, http.StatusOK, "GET", "/e2b/sandboxes/"+made.SandboxID, nil, "X-API-KEY", key); later.EndAt <= info.EndAt {
		t.Errorf("ends at %s, before at %s", later.EndAt, info.EndAt)
	}
	if answer, _ := b.do("DELETE", "/e2b/sandboxes/"+made.SandboxID, nil, "X-API-KEY", key); answer.StatusCode != http.StatusNoContent {
		t.Errorf("kill: %d", answer.StatusCode)
	}
	b.e2bFailure(http.StatusNotFound, "no sandbox", "DELETE", "/e2b/sandboxes/"+made.SandboxID, nil, "X-API-KEY", key)
	b.e2bFailure(http.StatusBadGateway, "was not found", "GET", "/e2b/health", nil, "E2b-Sandbox-Id", made.SandboxID, "X-Access-Token", made.EnvdAccessToken, "E2b-Sandbox-Port", e2b.EnvdPort)
}

// The last page names no next one, also where other sandboxes lie behind it in the index: those of other labels, and those that have ended.
func TestE2BPages(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	var made []string
	for range 4 {
		made = append(made, get[e2bMade](b, http.StatusCreated, "POST", "/e2b/v2/sandboxes", `{"templateID":"base","metadata":{"is":"listed"}}`, "X-API-KEY", key).SandboxID)
		b.e2bSandbox(key)
	}
	if answer, _ := b.do("DELETE", "/e2b/sandboxes/"+made[0], nil, "X-API-KEY", key); answer.StatusCode != http.StatusNoContent {
		t.Fatalf("kill: %d", answer.StatusCode)
	}
	made = made[1:]
	for _, limit := range []int{1, 2, 3, 4} {
		for _, order := range []string{"asc", "desc"} {
			want := slices.Clone(made)
			if order == "desc" {
				slices.Reverse(want)
			}
			query := fmt.Sprintf("/e2b/v2/sandboxes?metadata=is%%3Dlisted&limit=%d&order=%s", limit, order)
			var got []string
			pages := 0
			for target := query; target != ""; pages++ {
				answer, content := b.do("GET", target, nil, "X-API-KEY", key)
				var page []e2bMade
				if err := json.Unmarshal(content, &page); err != nil {
					t.Fatalf("%v in %s", err, content)
				}
				for _, s := range page {
					got = append(got, s.SandboxID)
				}
				if target = ""; answer.Header.Get("X-Next-Token") != "" {
					target = query + "&nextToken=" + answer.Header.Get("X-Next-Token")
				}
			}
			if !slices.Equal(got, want) || pages != (len(want)+limit-1)/limit {
				t.Errorf("%s: %d pages with %v, want %v", query, pages, got, want)
			}
		}
	}
}

// A page has at most a hundred sandboxes.
func TestE2BPagesAtTheirLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	for limit, want := range map[int]int{0: http.StatusBadRequest, 1: http.StatusOK, 99: http.StatusOK, 100: http.StatusOK, 101: http.StatusBadRequest} {
		if answer, text := b.do("GET", fmt.Sprintf("/e2b/v2/sandboxes?limit=%d", limit), nil, "X-API-KEY", key); answer.StatusCode != want {
			t.Errorf("limit %d: %d %s", limit, answer.StatusCode, text)
		}
	}
}

// A page of a template that few sandboxes have is empty once some pages were read for it, and leads to the next one.
func TestE2BPagesOfATemplateReadABoundedNumber(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	const reads = 10
	for made := 1; made <= reads+2; made++ {
		b.e2bSandbox(key)
		if made < reads {
			continue
		}
		answer, content := b.do("GET", "/e2b/v2/sandboxes?template=other&limit=1&order=asc", nil, "X-API-KEY", key)
		if more := answer.Header.Get("X-Next-Token") != ""; answer.StatusCode != http.StatusOK || string(bytes.TrimSpace(content)) != "[]" || more != (made == reads+2) {
			t.Errorf("of %d sandboxes: %d %s, a next page: %v", made, answer.StatusCode, content, more)
		}
	}
	answer, _ := b.do("GET", "/e2b/v2/sandboxes?template=other&limit=1&order=asc", nil, "X-API-KEY", key)
	answer, content := b.do("GET", "/e2b/v2/sandboxes?template=other&limit=1&order=asc&nextToken="+answer.Header.Get("X-Next-Token"), nil, "X-API-KEY", key)
	if answer.StatusCode != http.StatusOK || string(bytes.TrimSpace(content)) != "[]" || answer.Header.Get("X-Next-Token") != "" {
		t.Errorf("the next page: %d %s", answer.StatusCode, content)
	}
}

// Code whose caller leaves is stopped, whether its stream has begun or its end is still awaited before.
func TestE2BCodeEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	made, bearer := b.e2bSandbox(key), []string{"Authorization", "Bearer " + key}
	box := e2b.SandboxID(made.SandboxID)
	get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+box+"/execute", `{"code":"block"}`, bearer...) // what comes behind it is queued
	jobs := func() []wire.Job {
		return get[wire.List[wire.Job]](b, http.StatusOK, "GET", "/v1/jobs?kind=execute&sandbox_id="+box, nil, bearer...).Items
	}
	for n := range 5 {
		ctx, leave := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, "POST", b.web.URL+"/e2b/execute", strings.NewReader(`{"code":"print 1"}`))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"E2b-Sandbox-Id": made.SandboxID, "E2b-Sandbox-Port": e2b.InterpreterPort, "X-Access-Token": made.EnvdAccessToken} {
			request.Header.Set(name, value)
		}
		begun, left := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(left)
			answer, err := http.DefaultClient.Do(request)
			if err == nil {
				close(begun)
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
		}()
		testbed.Until(t, "the job", func() bool { return len(jobs()) == n+2 })
		if n == 4 {
			<-begun
		}
		leave()
		<-left
		testbed.Until(t, "the end of the job", func() bool { return jobs()[0].State == "canceled" })
	}
}

// A request to the data plane is served for the sandbox whose token it carries, and for no other one.
func TestE2BTokens(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	mine, other, foreign := b.e2bSandbox(key), b.e2bSandbox(key), b.e2bSandbox(otherKey)
	health := func(id, port, header, token string) int {
		answer, _ := b.do("GET", "/e2b/health", nil, "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", port, header, token)
		return answer.StatusCode
	}
	for _, id := range []string{mine.SandboxID, ""} { // SDKs of a year ago do not name the sandbox when they read or write a file
		if got := health(id, e2b.EnvdPort, "X-Access-Token", mine.EnvdAccessToken); got != http.StatusNoContent {
			t.Errorf("the sandbox's own token, for %q: %d", id, got)
		}
	}
	for name, got := range map[string]int{
		"none":                 health(mine.SandboxID, e2b.EnvdPort, "X-Access-Token", ""),
		"an API key":           health(mine.SandboxID, e2b.EnvdPort, "X-API-KEY", key),
		"of another sandbox":   health(mine.SandboxID, e2b.EnvdPort, "X-Access-Token", other.EnvdAccessToken),
		"of another tenant":    health(mine.SandboxID, e2b.EnvdPort, "X-Access-Token", foreign.EnvdAccessToken),
		"changed":              health(mine.SandboxID, e2b.EnvdPort, "X-Access-Token", mine.EnvdAccessToken[:20]+mine.EnvdAccessToken[21:]),
		"for traffic, to envd": health(mine.SandboxID, e2b.EnvdPort, "E2b-Traffic-Access-Token", mine.TrafficAccessToken),
		"of no sandbox":        health("", e2b.EnvdPort, "X-Access-Token", "x"),
		"for traffic, unnamed": health("", e2b.EnvdPort, "E2b-Traffic-Access-Token", mine.TrafficAccessToken),
	} {
		if got != http.StatusUnauthorized {
			t.Errorf("a token %s: %d", name, got)
		}
	}
	for _, made := range []e2bMade{mine} {
		b.e2bFailure(http.StatusNotFound, "no sandbox", "GET", "/e2b/sandboxes/"+made.SandboxID, nil, "X-API-KEY", otherKey)
		b.e2bFailure(http.StatusNotFound, "no sandbox", "POST", "/e2b/v2/sandboxes/"+made.SandboxID+"/connect", `{}`, "X-API-KEY", otherKey)
		b.e2bFailure(http.StatusNotFound, "no sandbox", "DELETE", "/e2b/sandboxes/"+made.SandboxID, nil, "X-API-KEY", otherKey)
	}
}

// The tokens of a sandbox end with the key that they were made with, and not with the sandbox: another key of the tenant makes others.
func TestE2BTokensEndWithTheirKey(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	first, second := b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin"), b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
	made := b.e2bSandbox(first.Secret)
	again := get[e2bMade](b, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+made.SandboxID+"/connect", `{}`, "X-API-KEY", second.Secret)
	open := func(method, path, header, token string) int {
		answer, _ := b.do(method, path, nil, "E2b-Sandbox-Id", made.SandboxID, "E2b-Sandbox-Port", e2b.InterpreterPort, header, token)
		return answer.StatusCode
	}
	tokens := func(m e2bMade) map[string]int {
		return map[string]int{
			"access":  open("GET", "/e2b/health", "X-Access-Token", m.EnvdAccessToken),
			"traffic": open("GET", "/e2b/contexts", "E2b-Traffic-Access-Token", m.TrafficAccessToken),
		}
	}
	refused := map[string]int{"access": http.StatusUnauthorized, "traffic": http.StatusUnauthorized}
	before := tokens(made)
	for kind, status := range before {
		if status == http.StatusUnauthorized {
			t.Errorf("%s token of a valid key is refused", kind)
		}
	}
	b.do("DELETE", "/v1/keys/"+first.Key.ID, nil, bearer("admin")...)
	b.refused(first.Secret)
	if diff := cmp.Diff(refused, tokens(made)); diff != "" {
		t.Errorf("after the key was revoked (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, tokens(again)); diff != "" {
		t.Errorf("the tokens of another key (-want +got):\n%s", diff)
	}
}

// The farm tells what is used now. The time of a figure is a multiple of five seconds, as with E2B.
func TestE2BMetrics(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys)
	at := "/e2b/sandboxes/" + e2b.ShownID(f.sandbox("Authorization", "Bearer "+key)) + "/metrics"
	type metric struct {
		Timestamp                                        time.Time
		TimestampUnix                                    int64
		CPUCount                                         int
		CPUUsedPct                                       *float64
		MemUsed, MemTotal, MemCache, DiskUsed, DiskTotal int64
	}
	metrics := func(query string) []metric {
		return get[[]metric](f.bundle, http.StatusOK, "GET", at+query, nil, "X-API-KEY", key)
	}
	before := time.Now().Unix()
	got := metrics("")
	if len(got) != 1 || got[0].CPUCount < 1 || got[0].CPUUsedPct == nil || got[0].MemUsed < 1 || got[0].MemTotal < 1 || got[0].DiskUsed < 1 || got[0].DiskTotal < 1 {
		t.Fatalf("%+v", got)
	}
	if m := got[0]; m.TimestampUnix%5 != 0 || m.Timestamp.Unix() != m.TimestampUnix || m.TimestampUnix <= before-5 || m.TimestampUnix > time.Now().Unix() {
		t.Errorf("at %s, %d", m.Timestamp, m.TimestampUnix)
	}
	for query, want := range map[string]int{
		fmt.Sprintf("?start=%d", before-10):                     1,
		fmt.Sprintf("?start=%d", before+600):                    0,
		fmt.Sprintf("?end=%d", before+600):                      1,
		fmt.Sprintf("?end=%d", before-10):                       0,
		fmt.Sprintf("?start=%d&end=%d", before-10, before+600):  1,
		fmt.Sprintf("?start=%d&end=%d", before-3600, before-60): 0,
	} {
		if got := metrics(query); len(got) != want {
			t.Errorf("%s: %+v", query, got)
		}
	}
	f.e2bFailure(http.StatusBadRequest, "seconds since 1970", "GET", at+"?start=x", nil, "X-API-KEY", key)
	f.e2bFailure(http.StatusNotFound, "no sandbox", "GET", at, nil, "X-API-KEY", otherKey)
	f.e2bFailure(http.StatusUnauthorized, "API key", "GET", at, nil)
}

// A sandbox that is to be paused at its timeout hibernates when it has been idle for that long, and lives as long as it may.
func TestE2BAutoPause(t *testing.T) {
	t.Parallel()
	var later atomic.Int64
	b := setup(t, withKeys, func(_ *api.Config, d *api.Deps) {
		d.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load()) * time.Second) }
	})
	if err := b.store.Heartbeat(t.Context(), farm.Worker{
		ID: "w1", Node: "n1", Images: []farm.Image{{Name: "python", Languages: []string{"python"}}}, Capacity: farm.Capacity{MemoryMB: 8000, CPUs: 8}, Runtimes: []string{"runsc"}, Hibernates: []string{"runsc"},
	}); err != nil {
		t.Fatal(err)
	}
	made := get[e2bMade](b, http.StatusCreated, "POST", "/e2b/v2/sandboxes", `{"templateID":"base","timeout":60,"autoPause":true}`, "X-API-KEY", key)
	now := func(want int) {
		t.Helper()
		s := get[wire.Sandbox](b, http.StatusOK, "GET", "/v1/sandboxes/"+e2b.SandboxID(made.SandboxID), nil, "Authorization", "Bearer "+key)
		if s.OnIdle != "hibernate" || s.IdleSeconds != want || s.TTLSeconds != farm.DefaultLimits().TTLMaxSeconds {
			t.Errorf("%s after %d s, ends after %d s; want hibernate after %d", s.OnIdle, s.IdleSeconds, s.TTLSeconds, want)
		}
	}
	now(60)
	if answer, _ := b.do("POST", "/e2b/sandboxes/"+made.SandboxID+"/timeout", `{"timeout":600}`, "X-API-KEY", key); answer.StatusCode != http.StatusNoContent {
		t.Errorf("timeout: %d", answer.StatusCode)
	}
	now(600)
	for _, timeout := range []int{900, 30, 31} { // a connect never shortens it, not even at the end of the sandbox's life
		if timeout == 31 {
			later.Store(int64(farm.DefaultLimits().TTLMaxSeconds) - 10)
		}
		get[e2bMade](b, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+made.SandboxID+"/connect", fmt.Sprintf(`{"timeout":%d}`, timeout), "X-API-KEY", key)
		now(900)
	}
}

func TestE2BBadRequests(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	for body, words := range map[string]string{
		`{`:                                      "body",
		`{"templateID":7}`:                       "body",
		`{}`:                                     "templateID",
		`{"templateID":"nope"}`:                  `image "nope" is not offered`,
		`{"templateID":"base","timeout":-1}`:     "timeout",
		`{"templateID":"base","autoPause":true}`: "hibernate",
		`{"templateID":"base","mcp":{"a":{}}}`:   "mcp",
		`{"templateID":"base","volumeMounts":[{}]}`:                                                  "volumes",
		`{"templateID":"base","network":{"denyOut":["10.0.0.0/8"]}}`:                                 "deny",
		`{"templateID":"base","network":{"allowOut":["a.example"]}}`:                                 "denyOut",
		`{"templateID":"base","network":{"allowOut":["1.2.3.4"],"denyOut":["0.0.0.0/0"]}}`:           "names",
		`{"templateID":"base","network":{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"]}}`:         "not enabled",
		`{"templateID":"base","envVars":{"":"x"}}`:                                                   "env",
		`{"templateID":"base","metadata":{"` + strings.Repeat("k", 300) + `":"v"}}`:                  "too long",
		`{"templateID":"base","network":{"rules":{"a":[{}]},"allowOut":[],"denyOut":["0.0.0.0/0"]}}`: "rules",
	} {
		b.e2bFailure(http.StatusBadRequest, words, "POST", "/e2b/v2/sandboxes", body, "X-API-KEY", key)
	}
	for timeout, status := range map[string]int{"604800": http.StatusNoContent, "604801": http.StatusBadRequest, "1": http.StatusNoContent, "-1": http.StatusBadRequest, "null": http.StatusBadRequest} {
		made := b.e2bSandbox(key)
		if answer, content := b.do("POST", "/e2b/sandboxes/"+made.SandboxID+"/timeout", `{"timeout":`+timeout+`}`, "X-API-KEY", key); answer.StatusCode != status {
			t.Errorf("timeout %s: %d %s", timeout, answer.StatusCode, content)
		}
	}
	b.e2bFailure(http.StatusUnauthorized, "API key", "POST", "/e2b/v2/sandboxes", `{"templateID":"base"}`)
	b.e2bFailure(http.StatusUnauthorized, "API key", "POST", "/e2b/v2/sandboxes", `{"templateID":"base"}`, "X-API-KEY", "e2b_0000")
	b.e2bFailure(http.StatusUnauthorized, "API key", "DELETE", "/e2b/templates/base", nil)
	b.e2bFailure(http.StatusNotFound, "no such path", "DELETE", "/e2b/templates/base", nil, "X-API-KEY", key)
	b.e2bFailure(http.StatusMethodNotAllowed, "PUT is not a method", "PUT", "/e2b/v2/sandboxes", nil, "X-API-KEY", key)
	b.e2bFailure(http.StatusBadRequest, "state", "GET", "/e2b/v2/sandboxes?state=asleep", nil, "X-API-KEY", key)
	b.e2bFailure(http.StatusBadRequest, "metadata", "GET", "/e2b/v2/sandboxes?metadata=a", nil, "X-API-KEY", key)
	b.e2bFailure(http.StatusBadRequest, "desc", "GET", "/e2b/v2/sandboxes?order=newest", nil, "X-API-KEY", key)
	b.e2bFailure(http.StatusNotFound, "no sandbox", "GET", "/e2b/sandboxes/"+e2b.ShownID(farm.NewID(farm.SandboxPrefix)), nil, "X-API-KEY", key)
	made := "/e2b/sandboxes/" + b.e2bSandbox(key).SandboxID
	b.e2bFailure(http.StatusBadRequest, "hibernate", "POST", made+"/pause", `{}`, "X-API-KEY", key)
	b.e2bFailure(http.StatusBadRequest, "Snapshots are not offered by this farm.", "POST", made+"/snapshots", `{}`, "X-API-KEY", key)
	b.e2bFailure(http.StatusBadRequest, "Forks are not offered by this farm.", "POST", made+"/fork", `{}`, "X-API-KEY", key)
}

// Quotas are told in E2B's form, with the status that its SDKs take for a limit of the rate.
func TestE2BQuotas(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys, func(c *api.Config, _ *api.Deps) {
		c.Keys = append(c.Keys, api.KeyConfig{Tenant: "ops", SHA256: hash("admin"), Scopes: []string{"admin"}})
	})
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"max_sandboxes": 1}`, bearer("admin")...)
	made := b.e2bSandbox(key)
	b.e2bFailure(http.StatusTooManyRequests, "max_sandboxes", "POST", "/e2b/v2/sandboxes", `{"templateID":"base"}`, "X-API-KEY", key)
	b.e2bSandbox(otherKey)
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"requests_per_minute": 0}`, bearer("admin")...)
	b.e2bFailure(http.StatusTooManyRequests, "requests_per_minute", "GET", "/e2b/v2/sandboxes", nil, "X-API-KEY", key)
	b.e2bFailure(http.StatusTooManyRequests, "requests_per_minute", "POST", "/e2b/process.Process/List", `{}`, "Content-Type", "application/json",
		"E2b-Sandbox-Id", made.SandboxID, "E2b-Sandbox-Port", e2b.EnvdPort, "X-Access-Token", made.EnvdAccessToken)
}
