package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// signedFile is the query of a URL that an SDK signs.
func signedFile(path, operation, user, token string, expiration ...int64) string {
	q := url.Values{"path": {path}}
	text := path + ":" + operation + ":" + user + ":" + token
	if user != "" {
		q.Set("username", user)
	}
	for _, end := range expiration {
		until := strconv.FormatInt(end, 10)
		text += ":" + until
		q.Set("signature_expiration", until)
	}
	sum := sha256.Sum256([]byte(text))
	q.Set("signature", "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
	return "?" + q.Encode()
}

// Without hosts for ports, nothing is searched for at the root of the farm's address.
func TestE2BSignedURLsAtTheRootNeedAPreviewDomain(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys, noPreviews)
	made := b.e2bSandbox(key)
	for _, method := range []string{"GET", "POST"} {
		b.e2bFailure(http.StatusNotFound, "api.preview_domain", method, "/files"+signedFile("a", "read", "", made.EnvdAccessToken), nil)
		b.e2bFailure(http.StatusNotFound, "api.preview_domain", method, "/files", nil, "X-Access-Token", made.EnvdAccessToken, "E2b-Sandbox-Id", made.SandboxID)
	}
}

// A signed URL has no token and, with E2B_SANDBOX_URL, no name of a sandbox and no /e2b.
func TestE2BSignedURLs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := setupLiveAgent(t, agenttest.StartWithFiles(t), withKeys, func(c *api.Config, _ *api.Deps) {
		c.PreviewDomain = "preview.example.com"
		c.Keys = append(c.Keys, api.KeyConfig{Tenant: "ops", SHA256: hash("admin"), Scopes: []string{"admin"}})
	})
	file := filepath.Join(dir, "a b.txt")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	connect := func(box, key string) (id, token string) {
		made := get[e2bMade](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+e2b.ShownID(box)+"/connect", `{}`, "X-API-KEY", key)
		return made.SandboxID, made.EnvdAccessToken
	}
	id, token := connect(f.sandbox("Authorization", "Bearer "+key), key)
	other, otherToken := connect(f.sandbox("Authorization", "Bearer "+otherKey), otherKey)
	later, before := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Minute).Unix()
	long := func(n int) string { // a path of n bytes
		return signedFile(strings.Repeat("/", n-len(file))+file, "read", "", token)
	}
	host := func(id string) []string { return []string{"Host", e2b.EnvdPort + "-" + id + ".preview.example.com"} }
	for name, c := range map[string]struct {
		target  string
		headers []string
		want    int
	}{
		"signed":                       {"/files" + signedFile(file, "read", "", token), nil, http.StatusOK},
		"below /e2b":                   {"/e2b/files" + signedFile(file, "read", "", token), nil, http.StatusOK},
		"for a user":                   {"/files" + signedFile(file, "read", "user", token), nil, http.StatusOK},
		"for a while":                  {"/files" + signedFile(file, "read", "", token, later), nil, http.StatusOK},
		"as long as may be":            {"/files" + long(farm.MaxPathBytes), nil, http.StatusOK},
		"too long":                     {"/files" + long(farm.MaxPathBytes+1), nil, http.StatusUnauthorized},
		"at the sandbox's host":        {"/files" + signedFile(file, "read", "", token), host(id), http.StatusOK},
		"at another one's host":        {"/files" + signedFile(file, "read", "", token), host(other), http.StatusUnauthorized},
		"expired":                      {"/files" + signedFile(file, "read", "", token, before), nil, http.StatusUnauthorized},
		"expiration not signed":        {"/files" + signedFile(file, "read", "", token) + "&signature_expiration=" + strconv.FormatInt(later, 10), nil, http.StatusUnauthorized},
		"expiration is no number":      {"/files" + signedFile(file, "read", "", token) + "&signature_expiration=x", nil, http.StatusUnauthorized},
		"to write":                     {"/files" + signedFile(file, "write", "", token), nil, http.StatusUnauthorized},
		"for another file":             {"/files" + signedFile(file, "read", "", token) + "&path=/etc/passwd", nil, http.StatusOK}, // the first one counts, here and below
		"signature of another file":    {"/files?path=/etc/passwd&" + signedFile(file, "read", "", token)[1:], nil, http.StatusUnauthorized},
		"for root":                     {"/files" + signedFile(file, "read", "root", token), nil, http.StatusUnauthorized},
		"user not signed":              {"/files" + signedFile(file, "read", "", token) + "&username=user", nil, http.StatusUnauthorized},
		"by an API key":                {"/files" + signedFile(file, "read", "", key), nil, http.StatusUnauthorized},
		"by nothing":                   {"/files" + signedFile(file, "read", "", ""), nil, http.StatusUnauthorized},
		"by another tenant":            {"/files" + signedFile(file, "read", "", otherToken), nil, http.StatusOK}, // its own sandbox; the agent of this test is one for all
		"not signed":                   {"/files?path=" + url.QueryEscape(file), nil, http.StatusBadRequest},
		"another form":                 {"/files?path=x&signature=v2_AAAA", nil, http.StatusBadRequest},
		"too short":                    {"/files?path=x&signature=v1_AAAA", nil, http.StatusUnauthorized},
		"to another route":             {"/e2b/health" + signedFile(file, "read", "", token), nil, http.StatusBadRequest},
		"and a token that is not good": {"/files" + signedFile(file, "read", "", token), []string{"X-Access-Token", "x", "E2b-Sandbox-Id", id}, http.StatusUnauthorized},
	} {
		if answer, body := f.do("GET", c.target, nil, c.headers...); answer.StatusCode != c.want || c.want == http.StatusOK && string(body) != "content" {
			t.Errorf("%s: %d %s", name, answer.StatusCode, body)
		}
	}
	if answer, text := f.do("DELETE", "/e2b/contexts/files"+signedFile(file, "read", "", token), nil); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("the end of a context named files: %d %s", answer.StatusCode, text)
	}
	f.e2bFailure(http.StatusUnauthorized, "signature is already expired", "GET", "/files"+signedFile(file, "read", "", token, before), nil)

	body := &bytes.Buffer{}
	form := multipart.NewWriter(body)
	_ = form.WriteField("file", "sent")
	_ = form.Close()
	written := filepath.Join(dir, "written.txt")
	if answer, text := f.do("POST", "/files"+signedFile(written, "read", "", token), body.String(), "Content-Type", form.FormDataContentType()); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("an upload by a URL to read: %d %s", answer.StatusCode, text)
	}
	if answer, text := f.do("POST", "/files"+signedFile(written, "write", "", token), body.String(), "Content-Type", form.FormDataContentType()); answer.StatusCode != http.StatusOK {
		t.Errorf("an upload: %d %s", answer.StatusCode, text)
	}
	if got, err := os.ReadFile(written); err != nil || string(got) != "sent" {
		t.Errorf("%q, %v", got, err)
	}

	// A URL ends with the key of its token.
	issued := f.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
	_, token = connect(f.sandbox(bearer(issued.Secret)...), issued.Secret)
	target := "/files" + signedFile(file, "read", "", token)
	if answer, text := f.do("GET", target, nil); answer.StatusCode != http.StatusOK {
		t.Errorf("by a new key: %d %s", answer.StatusCode, text)
	}
	f.do("DELETE", "/v1/keys/"+issued.Key.ID, nil, bearer("admin")...)
	f.refused(issued.Secret)
	f.e2bFailure(http.StatusUnauthorized, "revoked", "GET", target, nil)
}

// A link is followed through forty others.
func TestE2BLinksAtTheirLimit(t *testing.T) {
	t.Parallel()
	const limit = 40
	f, dir, headers := e2bBox(t)
	before := filepath.Join(dir, "file")
	if err := os.WriteFile(before, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= limit+1; n++ {
		link := filepath.Join(dir, fmt.Sprint(n))
		if err := os.Symlink(before, link); err != nil {
			t.Fatal(err)
		}
		before = link
		if n < limit-1 {
			continue
		}
		want := "FILE_TYPE_FILE"
		if n == limit+1 {
			want = "FILE_TYPE_SYMLINK"
		}
		out, failed := f.rpc("/filesystem.Filesystem/Stat", map[string]any{"path": link}, headers)
		if entry, _ := out["entry"].(map[string]any); failed != "" || entry["type"] != want {
			t.Errorf("%d links: %v %s", n, out, failed)
		}
	}
}

// farLink makes a link in a directory to a path that is too long to look at, and returns what is shown as its target.
func farLink(t *testing.T, dir, name string) string {
	t.Helper()
	target := strings.Repeat("t/", 2047) + "t"
	testbed.Must(t, os.Symlink(target, filepath.Join(dir, name)))
	return filepath.Join(dir, target)
}

// A list looks at so many files outside it that its links lead to: each takes a call to the sandbox. What it has seen takes none.
func TestE2BLinksOfAListAreBounded(t *testing.T) {
	t.Parallel()
	f, dir, headers := e2bBox(t)
	links := filepath.Join(dir, "links")
	testbed.Must(t, os.Mkdir(links, 0o700))
	testbed.Must(t, os.WriteFile(filepath.Join(links, "file"), nil, 0o600))
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "same"), nil, 0o600))
	testbed.Must(t, os.Symlink("file", filepath.Join(links, "link")))
	const outside = 1000
	for n := range outside - 1 {
		testbed.Must(t, os.Symlink("../same", filepath.Join(links, fmt.Sprint("same", n))))
		testbed.Must(t, os.Symlink(fmt.Sprint("../missing", n), filepath.Join(links, fmt.Sprint("far", n))))
		testbed.Must(t, os.Symlink("link", filepath.Join(links, fmt.Sprint("near", n))))
	}
	list := func() (files int, failed string) {
		out, failed := f.rpc("/filesystem.Filesystem/ListDir", map[string]any{"path": links}, headers)
		entries, _ := out["entries"].([]any)
		for _, e := range entries {
			if entry, _ := e.(map[string]any); entry["type"] == "FILE_TYPE_FILE" {
				files++
			}
		}
		return files, failed
	}
	if files, failed := list(); failed != "" || files != 2+2*(outside-1) {
		t.Errorf("%d files: %s", files, failed)
	}
	testbed.Must(t, os.Symlink("../more", filepath.Join(links, "more")))
	if _, failed := list(); !strings.HasPrefix(failed, "resource_exhausted") {
		t.Errorf("%d files outside: %q", outside+1, failed)
	}
}

// Changes with entries that are too large together have some without: they are told once.
func TestE2BEntriesOfChangesAreBounded(t *testing.T) {
	t.Parallel()
	f, dir, headers := e2bBox(t)
	made, failed := f.rpc("/filesystem.Filesystem/CreateWatcher", map[string]any{"path": dir, "includeEntry": true}, headers)
	if failed != "" {
		t.Fatal(failed)
	}
	const changes, limit = 1100, 8 << 20
	for n := range changes {
		farLink(t, dir, fmt.Sprint(n))
	}
	seen := map[string]bool{}
	testbed.Until(t, "all changes are told", func() bool {
		out, failed := f.rpc("/filesystem.Filesystem/GetWatcherEvents", made, headers)
		if failed != "" {
			t.Fatal(failed)
		}
		events, _ := out["events"].([]any)
		bytes, whole := 0, 0
		for _, event := range events {
			event, _ := event.(map[string]any)
			name := fmt.Sprint(event["name"])
			if seen[name] {
				t.Errorf("%s is told twice", name)
			}
			seen[name] = true
			if entry, ok := event["entry"].(map[string]any); ok {
				whole++
				bytes += 512 + 4*len(name) + 512 + 4*len(fmt.Sprint(entry["path"], entry["symlinkTarget"]))
			}
		}
		if bytes > limit || whole < len(events) && bytes < limit*3/4 {
			t.Errorf("%d changes, of which %d with entries have %d bytes", len(events), whole, bytes)
		}
		return len(seen) == changes
	})
}

// A stream of changes holds no memory for those that were sent.
func TestE2BChangesThatWereSentAreNotHeld(t *testing.T) {
	t.Parallel()
	var m *budget.Budget
	f, dir, headers := e2bBox(t, withMemory(&m))
	deep := filepath.Join(dir, strings.Repeat(strings.Repeat("d", 250)+"/", 12)) // so that an answer of the sandbox is charged
	testbed.Must(t, os.MkdirAll(deep, 0o700))
	stream := e2bStream(t, f.web.URL, "/filesystem.Filesystem/WatchDir", `{"path":"`+deep+`"}`, headers)
	const changes = 600
	for n := range changes {
		testbed.Must(t, os.Mkdir(filepath.Join(deep, fmt.Sprint(n)), 0o700))
	}
	events := e2bMessages(stream)
	for seen := 0; seen < changes && events.Scan(); {
		if strings.Contains(events.Text(), "EVENT_TYPE_CREATE") {
			seen++
		}
	}
	testbed.Must(t, events.Err())
	testbed.Until(t, "nothing is held", func() bool { return m.Stats().Used == 0 })
}
