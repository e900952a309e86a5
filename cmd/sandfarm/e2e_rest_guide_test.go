//go:build integration

package main_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// guideBlock is a code block of docs/rest.md, with the output that the page shows below it.
type guideBlock struct{ language, text, output string }

func guideBlocks(t *testing.T) []guideBlock {
	t.Helper()
	page, err := os.ReadFile("../../docs/rest.md")
	testbed.Must(t, err)
	var blocks []guideBlock
	for _, found := range regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if found[1] == "text" {
			blocks[len(blocks)-1].output = found[2]
			continue
		}
		blocks = append(blocks, guideBlock{language: found[1], text: found[2]})
	}
	return blocks
}

// TestRESTGuide runs every block of docs/rest.md against a farm with keys, and the example scripts.
func TestRESTGuide(t *testing.T) {
	t.Parallel()
	f, key := newFarmWithKey(t, "SANDFARM_API_ALLOW_PRIVATE_CALLBACKS=true")
	g := &restGuide{farm: f.Client, farmEnv: f.env, env: append(os.Environ(), "SANDFARM_URL="+f.url, "SANDFARM_API_KEY="+key)}
	t.Run("guide", func(t *testing.T) { // the farm is stopped when all of them are done
		t.Run("shell", func(t *testing.T) { t.Parallel(); g.shell(t) })
		for _, script := range []string{"rest.sh", "packages.sh"} {
			t.Run(script, func(t *testing.T) { t.Parallel(); g.run(t, absolute(t, "../../examples/"+script)) })
			t.Run(script+" without a key", func(t *testing.T) { t.Parallel(); g.runWithoutKey(t, "../../examples/"+script) })
		}
		for _, b := range guideBlocks(t) {
			if b.language != "sh" {
				t.Run(b.language, func(t *testing.T) { t.Parallel(); g.receiver(t, b) })
			}
		}
	})
}

type restGuide struct {
	farm         *client.Client
	farmEnv, env []string
}

// run runs a program in a directory of its own and returns what it printed.
func (g *restGuide) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = t.TempDir(), g.env
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil || problems.Len() > 0 {
		t.Fatalf("%s: %v\n%s%s", name, err, out, &problems)
	}
	return string(out)
}

// runWithoutKey runs a script that needs a key without one: it ends at the first request, and says what it needs.
func (g *restGuide) runWithoutKey(t *testing.T, script string) {
	cmd := exec.CommandContext(t.Context(), script)
	cmd.Env = slices.Concat(g.env, []string{"SANDFARM_API_KEY="})
	out, err := cmd.CombinedOutput()
	if err == nil || bytes.Count(out, []byte("curl:")) != 1 || !bytes.Contains(out, []byte("set SANDFARM_API_KEY")) {
		t.Errorf("%v, and it printed\n%s", err, out)
	}
}

// shell runs all blocks of the shell as one script and compares the output of each with the page.
func (g *restGuide) shell(t *testing.T) {
	const mark = "--- end of a block ---\n"
	script, want := "set -eu\n", []string{}
	for _, b := range guideBlocks(t) {
		if b.language == "sh" {
			script += b.text + "printf '%s' '" + mark + "'\n"
			want = append(want, b.output)
		}
	}
	if len(want) < 10 {
		t.Fatalf("the page has %d blocks of the shell", len(want))
	}
	got := strings.Split(strings.TrimSuffix(g.run(t, "sh", "-c", script), mark), mark)
	testbed.Diff(t, "output of the blocks", want, got)
}

// receiver starts a webhook receiver of the page, has the farm send it a job, and sends it forged messages itself.
func (g *restGuide) receiver(t *testing.T, b guideBlock) {
	secret := exec.Command(program, "config", "callback-secret", "acme")
	secret.Env = g.farmEnv
	printed, err := secret.Output()
	testbed.Must(t, err)
	address := testbed.Address(t)
	_, port, _ := net.SplitHostPort(address)
	lines := g.serve(t, b, "WEBHOOK_SECRET="+strings.TrimSpace(string(printed)), "PORT="+port)
	testbed.AwaitListener(t, address)
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(string(printed)), "whsec_"))
	testbed.Must(t, err)
	for name, forged := range map[string]webhookMessage{
		"signed with another key": {key: []byte("another key"), body: `{"id":"job_1","state":"completed"}`},
		"changed after signing":   {key: key, body: `{"id":"job_1","state":"completed"}`, sent: `{"id":"job_2","state":"completed"}`},
		"six minutes old":         {key: key, body: `{"id":"job_1","state":"completed"}`, age: 6 * time.Minute},
		"without a signature":     {body: `{"id":"job_1","state":"completed"}`},
	} {
		testbed.Diff(t, fmt.Sprintf("a message %s gets", name), http.StatusBadRequest, forged.send(t, address))
	}
	job, err := g.farm.Run(t.Context(), wire.RunRequest{Code: "6 * 7", CallbackURL: "http://" + address + "/"})
	testbed.Must(t, err)
	select {
	case line := <-lines:
		if line != job.ID+" completed" {
			t.Errorf("the receiver printed %q for job %s", line, job.ID)
		}
	case <-time.After(2 * time.Minute):
		t.Error("the callback did not arrive")
	}
}

// serve writes the program of a block to a file, starts it, and returns the lines that it prints.
func (g *restGuide) serve(t *testing.T, b guideBlock, env ...string) <-chan string {
	t.Helper()
	var command []string
	file := filepath.Join(t.TempDir(), "receiver."+map[string]string{"python": "py", "go": "go", "js": "mjs"}[b.language])
	testbed.Must(t, os.WriteFile(file, []byte(b.text), 0o600))
	switch b.language {
	case "python":
		command = []string{"python3", file}
	case "js":
		command = []string{filepath.Join(os.Getenv("SANDFARM_TEST_MCP"), "node", "bin", "node"), file}
	case "go":
		program := filepath.Join(t.TempDir(), "receiver") // go run would leave it running when it is killed
		g.run(t, "go", "build", "-o", program, file)
		command = []string{program}
	default:
		t.Fatalf("nothing runs blocks of %s", b.language)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stderr = append(g.env, env...), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	testbed.Must(t, err)
	lines := make(chan string, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	return lines
}

// webhookMessage is a message that a farm did not send. Without a key it is not signed.
type webhookMessage struct {
	key        []byte
	body, sent string // sent differs from body where it was changed after signing
	age        time.Duration
}

func (m webhookMessage) send(t *testing.T, address string) int {
	t.Helper()
	if m.sent == "" {
		m.sent = m.body
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/", strings.NewReader(m.sent))
	testbed.Must(t, err)
	timestamp := strconv.FormatInt(time.Now().Add(-m.age).Unix(), 10)
	r.Header.Set("Webhook-Id", "job_1")
	r.Header.Set("Webhook-Timestamp", timestamp)
	if m.key != nil {
		mac := hmac.New(sha256.New, m.key)
		mac.Write([]byte("job_1." + timestamp + "." + m.body))
		r.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	answer, err := http.DefaultClient.Do(r)
	testbed.Must(t, err)
	_ = answer.Body.Close()
	return answer.StatusCode
}
