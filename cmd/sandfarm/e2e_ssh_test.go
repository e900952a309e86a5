//go:build integration

package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// sshUser is a user of OpenSSH with a configuration that the program has printed.
type sshUser struct {
	t         *testing.T
	dir, file string
	host      string
	env       []string
	farm      *farmProcess
	sandbox   string
}

func newSSHUser(t *testing.T) *sshUser {
	t.Helper()
	f := newFarm(t)
	u := &sshUser{t: t, dir: t.TempDir(), farm: f, sandbox: f.sandbox(wire.CreateRequest{}).ID}
	u.host, u.file = u.sandbox+".sandfarm", filepath.Join(u.dir, "config")
	u.env = append(os.Environ(), "SANDFARM_URL="+f.url, "HOME="+u.dir, "XDG_CONFIG_HOME="+filepath.Join(u.dir, "settings"))
	config := exec.Command(program, "ssh-config")
	config.Env = u.env
	text, err := config.Output()
	testbed.Must(t, err)
	testbed.Must(t, os.WriteFile(u.file, text, 0o600))
	return u
}

// run runs a program of OpenSSH with the configuration.
func (u *sshUser) run(in io.Reader, name string, args ...string) (stdout, stderr string, code int) {
	u.t.Helper()
	c := exec.CommandContext(u.t.Context(), name, append([]string{"-F", u.file}, args...)...)
	return u.wait(c, in)
}

func (u *sshUser) wait(c *exec.Cmd, in io.Reader) (stdout, stderr string, code int) {
	u.t.Helper()
	var out, errs bytes.Buffer
	c.Env, c.Stdin, c.Stdout, c.Stderr = u.env, in, &out, &errs
	err := c.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		u.t.Fatal(err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// OpenSSH's own programs reach a sandbox: nothing of SSH listens anywhere.
func TestOpenSSH(t *testing.T) {
	t.Parallel()
	u := newSSHUser(t)
	for name, test := range map[string]func(*sshUser){
		"Command": sshCommand, "Terminal": sshTerminal, "Leave": sshLeave, "Forward": sshForward, "Copy": sshCopy, "SFTP": sshFiles, "Rsync": sshRsync, "Refused": sshRefused,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := *u
			own.t = t
			test(&own)
		})
	}
}

func sshCommand(u *sshUser) {
	out, errs, code := u.run(strings.NewReader("given\n"), "ssh", "-o", "SetEnv=LC_OWN=mine", u.host, `cat; echo "$LC_OWN"; echo wrong >&2; exit 7`)
	if out != "given\nmine\n" || errs != "wrong\n" || code != 7 {
		u.t.Errorf("%q %q %d", out, errs, code)
	}
	long := strings.Repeat("0123456789abcde\n", 1<<18) // 4 MiB both ways
	if out, errs, code = u.run(strings.NewReader(long), "ssh", u.host, "cat"); out != long || code != 0 {
		u.t.Errorf("%d bytes came back, %q %d", len(out), errs, code)
	}
	if out, _, code = u.run(strings.NewReader("echo $((6 * 7)); exit 3\n"), "ssh", u.host); !strings.Contains(out, "42") || code != 3 {
		u.t.Errorf("a shell without a terminal: %q %d", out, code)
	}
}

func sshTerminal(u *sshUser) {
	f := *u.farm
	f.t = u.t
	p := f.sitDownAt(u.env, "ssh", "-F", u.file, "-tt", u.host)
	before := p.mode()
	p.sees("$ ")
	p.types("stty size; echo $TERM\r")
	p.sees("30 100\r\n")
	p.sees("xterm-256color")
	p.size(120, 40)
	p.types("until [ \"$(stty size)\" = '40 120' ]; do :; done; echo re''sized\r")
	p.sees("resized\r\n")
	p.types("exit 9\r")
	testbed.Diff(u.t, "exit code", 9, p.leaves(before))
}

// A program whose client has left gets SIGHUP; one that ignores it runs on.
func sshLeave(u *sshUser) {
	client := exec.Command("ssh", "-F", u.file, u.host, "trap 'echo gone > left; exit' HUP; echo up; while :; do sleep 0.1; done")
	client.Env = u.env
	out, err := client.StdoutPipe()
	testbed.Must(u.t, err)
	testbed.Must(u.t, client.Start())
	_, err = io.ReadFull(out, make([]byte, 3))
	testbed.Must(u.t, err)
	testbed.Must(u.t, client.Process.Kill())
	_ = client.Wait()
	until(u.t.Context(), u.t, "the program is told", time.Minute, func() bool {
		_, err := u.farm.FS(u.sandbox).Stat(u.t.Context(), "left")
		return err == nil
	})
}

func sshForward(u *sshUser) {
	started, _, code := u.run(nil, "ssh", u.host, "mkdir -p site && cd site && echo served > page && (nohup python3 -m http.server 8123 >/dev/null 2>&1 &)")
	if code != 0 {
		u.t.Fatal(started)
	}
	until(u.t.Context(), u.t, "the server listens", time.Minute, func() bool {
		list, err := u.farm.Ports(u.t.Context(), u.sandbox)
		return err == nil && len(list) > 0
	})
	here := testbed.Address(u.t)
	_, port, _ := strings.Cut(here, ":")
	client := exec.Command("ssh", "-F", u.file, "-N", "-L", "127.0.0.1:"+port+":localhost:8123", u.host)
	client.Env = u.env
	testbed.Must(u.t, client.Start())
	u.t.Cleanup(func() { _ = client.Process.Kill(); _ = client.Wait() })
	until(u.t.Context(), u.t, "the page is here", time.Minute, func() bool {
		answer, err := http.Get("http://" + here + "/page")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return err == nil && string(body) == "served\n"
	})
}

// scp speaks sftp. Lengths around those of the blocks in which files are read come back as they were, with mode and time.
func sshCopy(u *sshUser) {
	for _, size := range []int{0, 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 9_999_999} {
		name := fmt.Sprintf("copied-%d", size)
		here, back := filepath.Join(u.dir, name), filepath.Join(u.dir, name+"-back")
		content := bytes.Repeat([]byte("some bytes that differ from those before\n"), size/41+1)[:size]
		testbed.Must(u.t, os.WriteFile(here, content, 0o600))
		testbed.Must(u.t, os.Chmod(here, 0o751))
		at := time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC)
		testbed.Must(u.t, os.Chtimes(here, at, at))
		for _, args := range [][]string{{"-p", here, u.host + ":" + name}, {"-p", u.host + ":" + name, back}} {
			if _, errs, code := u.run(nil, "scp", args...); code != 0 {
				u.t.Fatalf("scp %v: %s", args, errs)
			}
		}
		got, err := os.ReadFile(back)
		testbed.Must(u.t, err)
		info, err := os.Stat(back)
		testbed.Must(u.t, err)
		there, err := u.farm.FS(u.sandbox).Stat(u.t.Context(), name)
		testbed.Must(u.t, err)
		if !bytes.Equal(got, content) || info.Mode() != 0o751 || !info.ModTime().Equal(at) || there.Mode != "0751" || !there.ModifiedAt.Equal(at) {
			u.t.Errorf("%d bytes: %d came back, %s %s, and there %+v", size, len(got), info.Mode(), info.ModTime(), there)
		}
	}
	tree := filepath.Join(u.dir, "tree")
	testbed.Must(u.t, os.MkdirAll(filepath.Join(tree, "a b", "größe"), 0o700))
	testbed.Must(u.t, os.WriteFile(filepath.Join(tree, "a b", "größe", "f"), []byte("deep"), 0o600))
	if _, errs, code := u.run(nil, "scp", "-r", tree, u.host+":/tmp/"); code != 0 {
		u.t.Errorf("scp -r: %s", errs)
	}
	if out, _, _ := u.run(nil, "ssh", u.host, "cat '/tmp/tree/a b/größe/f'"); out != "deep" {
		u.t.Errorf("the tree has %q", out)
	}
}

func sshFiles(u *sshUser) {
	here := filepath.Join(u.dir, "here")
	longer := filepath.Join(u.dir, "longer")
	testbed.Must(u.t, os.WriteFile(here, []byte("one\n"), 0o644))
	testbed.Must(u.t, os.WriteFile(longer, []byte("one\ntwo\n"), 0o644))
	for _, step := range []struct {
		commands, want string // of both outputs together
		code           int
	}{
		{"pwd", "/workspace", 0},
		{"mkdir d\nput " + here + " d/x\nls -l d", "-rw-r--r--", 0},
		{"put -a " + longer + " d/x\nchmod 600 d/x\nls -l d/x", "-rw-------", 0},
		{"rename d/x d/y\nsymlink y d/l\nget d/l " + here + ".back", "", 0},
		{"put " + here + " d/z\nrename -l d/z d/y", "exists", 1}, // the old rename replaces nothing
		{"rmdir d", "not an empty directory", 1},
		{"rm d", "is a directory", 1},
		{"mkdir d", "exists", 1},
		{"get /etc/shadow " + here + ".shadow", "Permission denied", 1},
		{"put " + here + " /etc/own", "Permission denied", 1},
		{"put " + here + " nowhere/x", "", 1},
		{"ls nowhere", "not found", 1},
		{"rm d/l\nrm d/y\nrm d/z\nrmdir d\nls", "", 0},
	} {
		out, errs, code := u.run(strings.NewReader(step.commands+"\n"), "sftp", "-b", "-", u.host)
		if code != step.code || step.want != "" && !strings.Contains(out+errs, step.want) && !strings.Contains(errs, "Failure") {
			u.t.Errorf("%q: %d\n%s%s", step.commands, code, out, errs)
		}
	}
	if got, err := os.ReadFile(here + ".back"); err != nil || string(got) != "one\ntwo\n" {
		u.t.Errorf("%q %v", got, err)
	}
}

func sshRefused(u *sshUser) {
	missing := "sbx_" + strings.Repeat("0", 26) + ".sandfarm"
	if _, errs, code := u.run(nil, "ssh", missing, "true"); code != 255 || !strings.Contains(errs, "There is no sandbox") {
		u.t.Errorf("%q %d", errs, code)
	}
	if _, errs, _ := u.run(nil, "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "9000:localhost:9000", u.host, "true"); !strings.Contains(errs, "remote port forwarding failed") {
		u.t.Errorf("a port of the client: %q", errs)
	}
	other := exec.CommandContext(u.t.Context(), "ssh", "-F", u.file, "-o", "UserKnownHostsFile=/dev/null", u.host, "true")
	if _, errs, code := u.wait(other, nil); code == 0 || !strings.Contains(errs, "Host key verification failed") {
		u.t.Errorf("another host key: %q %d", errs, code)
	}
}

// rsync sends a tree, then only what has changed, and brings it back the same.
func sshRsync(u *sshUser) {
	tree, back := filepath.Join(u.dir, "sent"), filepath.Join(u.dir, "back")
	for n := range 500 {
		dir := filepath.Join(tree, fmt.Sprint(n%20))
		testbed.Must(u.t, os.MkdirAll(dir, 0o700))
		testbed.Must(u.t, os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), []byte(strings.Repeat("line\n", n)), 0o600))
	}
	sync := func(args ...string) string {
		out, errs, code := u.wait(exec.CommandContext(u.t.Context(), "rsync", append([]string{"-a", "--stats", "-e", "ssh -F " + u.file}, args...)...), nil)
		if code != 0 {
			u.t.Fatalf("rsync %v: %s", args, errs)
		}
		return out
	}
	there := u.host + ":sent/"
	for _, want := range []string{"Number of regular files transferred: 500\n", "Number of regular files transferred: 0\n"} {
		if out := sync(tree+"/", there); !strings.Contains(out, want) {
			u.t.Errorf("%q is not in %s", want, out)
		}
	}
	testbed.Must(u.t, os.WriteFile(filepath.Join(tree, "7", "7"), []byte("changed"), 0o600))
	testbed.Must(u.t, os.Remove(filepath.Join(tree, "8", "8")))
	sync("--delete", tree+"/", there)
	sync(there, back+"/")
	if out, err := exec.Command("diff", "-r", tree, back).CombinedOutput(); err != nil {
		u.t.Errorf("%v: %s", err, out)
	}
}
