package engineproxy_test

import (
	"archive/tar"
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engineproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func readAnswer(t *testing.T, conn net.Conn) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	testbed.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testbed.Must(t, err)
	return resp.StatusCode, string(text)
}

// Each of these is refused with 403 and a sentence that names the call, and nothing of it reaches the engine.
func TestCallsThatAreRefused(t *testing.T) {
	t.Parallel()
	p := newProxy(t, nil)
	own, other := "/v1.41/containers/"+ours, "/v1.41/containers/"+theirs
	label := `{"label":{"sandfarm.namespace=farm":true}}`
	for _, call := range []struct{ method, target, body string }{
		// of the API, but not of a farm
		{"GET", own + "/archive?path=/etc", ""},
		{"GET", own + "/logs?stdout=1", ""},
		{"GET", own + "/export", ""}, // of a sandbox
		{"GET", other + "/export", ""},
		{"GET", own + "/top", ""},
		{"GET", own + "/changes", ""},
		{"GET", own + "/attach/ws?stream=1", ""},
		{"POST", own + "/attach?stream=1", ""},
		{"POST", own + "/kill", ""},
		{"POST", own + "/rename?name=x", ""},
		{"POST", own + "/stop", ""},
		{"POST", own + "/checkpoints", "{}"},
		{"POST", "/v1.41/containers/prune", ""},
		{"POST", "/v1.41/commit?container=x", ""},
		{"GET", "/v1.41/plugins", ""},
		{"POST", "/v1.41/plugins/pull?remote=x", "[]"},
		{"GET", "/v1.41/swarm", ""},
		{"POST", "/v1.41/swarm/init", "{}"},
		{"POST", "/v1.41/services/create", "{}"},
		{"GET", "/v1.41/secrets", ""},
		{"GET", "/v1.41/networks", ""},
		{"POST", "/v1.41/networks/create", "{}"},
		{"GET", "/v1.41/events", ""},
		{"GET", "/v1.41/system/df", ""},
		{"POST", "/v1.41/auth", "{}"},
		{"POST", "/v1.41/session", ""},
		{"POST", "/v1.41/grpc", ""},
		{"GET", "/v1.41/distribution/x/json", ""},
		{"GET", "/v1.41/images/get?names=x", ""},
		{"POST", "/v1.41/images/load", "x"},
		{"POST", "/v1.41/images/prune", ""},
		{"POST", "/v1.41/images/x/push", ""},
		{"GET", "/v1.41/exec/" + execID + "/json", ""},
		{"POST", "/v1.41/volumes/prune", ""},
		{"PUT", "/v1.41/volumes/x", "{}"},
		// only where images are built
		{"POST", "/v1.41/build", "x"},
		{"POST", "/v1.41/images/create?fromImage=x&tag=1", ""},
		{"POST", "/v1.41/images/python:1/tag?repo=farm/probe&tag=1", ""},
		{"POST", "/v1.41/images/python:1/tag?repo=node&tag=latest", ""},
		{"POST", "/v1.41/images/python:1/tag?repo=python&tag=2", ""},
		{"POST", "/v1.41/images/postgres:17/tag?repo=postgres&tag=latest", ""},
		{"POST", "/v1.41/images/python:5000/other:1/tag?repo=python&tag=latest", ""},
		{"DELETE", "/v1.41/images/python:1", ""},
		{"POST", "/v1.41/images/create?fromSrc=-&repo=farm/probe:1", "something"},
		{"POST", "/v1.41/images/create?fromSrc=-&repo=farm/probe:1", strings.Repeat("\x00", 1025)},
		{"POST", "/v1.41/images/create?fromSrc=-&repo=python:1", strings.Repeat("\x00", 1024)},
		{"POST", "/v1.41/images/create?fromSrc=-&repo=farm/probe:1&changes=USER+0", strings.Repeat("\x00", 1024)},
		{"POST", "/v1.41/images/create?fromSrc=http://169.254.169.254/&repo=farm/probe:1", ""},
		{"POST", "/v1.41/images/create?fromSrc=-&fromImage=x&repo=farm/probe:1", ""},
		// of others
		{"GET", other + "/json", ""},
		{"POST", other + "/start", ""},
		{"GET", other + "/stats?stream=0&one-shot=1", ""},
		{"DELETE", other + "?force=1&v=1", ""},
		{"DELETE", "/v1.41/containers/postgres?force=1", ""},
		{"POST", other + "/update", `{"Memory":1}`},
		{"GET", other + "/checkpoints", ""},
		{"POST", other + "/checkpoints", `{"CheckpointID":"sandfarm","CheckpointDir":"","Exit":true}`},
		{"DELETE", other + "/checkpoints/sandfarm", ""},
		{"POST", other + "/start?checkpoint=sandfarm", ""},
		{"POST", other + "/exec", `{"User":"65533:65533"}`},
		{"GET", "/v1.41/volumes/postgres", ""},
		{"DELETE", "/v1.41/volumes/postgres?force=1", ""},
		{"GET", "/v1.41/images/postgres:17/json", ""},
		// parameters
		{"POST", own + "/start?checkpoint=x&checkpoint-dir=/etc", ""},
		{"POST", own + "/start?checkpoint=other", ""},
		{"GET", own + "/checkpoints?dir=/etc", ""},
		{"POST", own + "/checkpoints", `{"CheckpointID":"sandfarm","CheckpointDir":"/etc","Exit":true}`},
		{"POST", own + "/checkpoints", `{"CheckpointID":"../../x","CheckpointDir":"","Exit":true}`},
		{"POST", own + "/checkpoints", `{"CheckpointID":"sandfarm","CheckpointDir":"","Exit":false}`},
		{"POST", "/v1.41/containers/" + helper + "/checkpoints", `{"CheckpointID":"sandfarm","CheckpointDir":"","Exit":true}`},
		{"DELETE", own + "/checkpoints/sandfarm?dir=/etc", ""},
		{"DELETE", own + "/checkpoints/other", ""},
		{"POST", own + "/start", `{"Binds":["/:/host"]}`},
		{"DELETE", own + "?force=1&link=1", ""},
		{"DELETE", own + "?force=1&force=1", ""},
		{"GET", own + "/stats?stream=1", ""},
		{"GET", "/v1.41/containers/json", ""},
		{"GET", "/v1.41/containers/json?all=1&filters={}", ""},
		{"GET", `/v1.41/containers/json?filters={"ancestor":{"x":true},"label":{"y":true}}`, ""},
		{"GET", `/v1.41/containers/json?filters={"label":{"":true}}`, ""},
		{"GET", `/v1.41/containers/json?filters={"label":{"x":false}}`, ""},
		{"GET", "/v1.41/containers/json?size=1&filters=" + label, ""},
		{"GET", "/v1.41/volumes", ""},
		{"GET", "/v1.41/images/json?all=1", ""},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/etc", "x"},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", "\x1f\x8b\x08compressed"},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", packed(t, "volume/", 0o777, "volume/agent")},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", packed(t, "other/", 0o111, "other/agent")},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", packed(t, "agent", 0o111)},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", packed(t, "volume/", 0o111, "agent")},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", packed(t, "volume/", 0o111, "volume/../agent")},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", packed(t, "volume/", 0o111, "volume/../../etc/passwd")},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", packed(t, "volume/", 0o111, "volume/sub/agent")},
		{"PUT", "/v1.41/containers/" + helper + "/archive?path=/sandfarm", packed(t, "volume/", 0o111, "volume/agent", "volume/sub/")},
		{"PUT", own + "/archive?path=/sandfarm", "x"},
		{"POST", "/v1.41/containers/" + helper + "/exec", `{"User":"65533:65533","Privileged":false,"Tty":false,"AttachStdin":true,"AttachStderr":true,"AttachStdout":true,"DetachKeys":"","Env":null,"WorkingDir":"","Cmd":["/sandfarm/agent","dial"],"Detach":false}`},
		{"POST", "/v1.41/exec/" + execID + "/start", `{"Detach":false,"Tty":false}`},
		// paths
		{"GET", "/containers/" + ours + "/json", ""},
		{"GET", "/v1.24/containers/" + ours + "/json", ""},
		{"GET", "/v1.041/containers/" + ours + "/json", ""},
		{"GET", "/v1.41/v1.41/containers/" + ours + "/json", ""},
		{"GET", "/v2.00/info", ""},
		{"GET", "//info", ""},
		{"GET", "/v1.41//info", ""},
		{"GET", "/v1.41/info/", ""},
		{"GET", "/v1.41/./info", ""},
		{"GET", "/v1.41/containers/../info", ""},
		{"GET", "/v1.41/containers/" + ours + "/../" + theirs + "/json", ""},
		{"GET", "/v1.41/images/../containers/" + theirs + "/json", ""},
		{"GET", "/v1.41/containers/%2e%2e/info", ""},
		{"GET", "/v1.41/images/python%3A1/json", ""},
		{"GET", "/v1.41/containers%2fjson", ""},
		{"GET", "http://engine/v1.41/info", ""},
		{"GET", "/v1.41/info;x", ""},
		{"GET", "/v1.41/info?x=1;y=2", ""},
		{"CONNECT", "engine:80", ""},
		{"TRACE", "/v1.41/info", ""},
		{"get", "/v1.41/info", ""},
	} {
		status, text := p.call(t, call.method, call.target, call.body)
		what := fmt.Sprintf("%s %s %.40q", call.method, call.target, call.body)
		if status != http.StatusForbidden || !strings.Contains(text, "the engine proxy refuses "+call.method+" ") {
			t.Errorf("%s: %d %s", what, status, text)
		}
	}
	for _, call := range p.fake.changes() {
		if !strings.Contains(call, helper+"/archive") { // begun, and broken off at the first bytes
			t.Errorf("the engine got %s", call)
		}
	}
}

// Bodies of a create that would give a container more than a sandbox has.
func TestCreatesThatAreRefused(t *testing.T) {
	t.Parallel()
	p := newProxy(t, nil)
	name, good := sandboxBody(t, nil)
	host := func(key string, value any) string {
		return edit(t, good, func(d map[string]any) { d["HostConfig"].(map[string]any)[key] = value })
	}
	top := func(key string, value any) string {
		return edit(t, good, func(d map[string]any) { d[key] = value })
	}
	_, hostVolume := sandboxBody(t, func(s *farm.ContainerSpec) { s.Agent = "farm-agent-host" })
	_, secret := sandboxBody(t, func(s *farm.ContainerSpec) { s.Image = "postgres:17" })
	_, volumes := sandboxBody(t, func(s *farm.ContainerSpec) { s.Image = "postgres:1" })
	for what, body := range map[string]string{
		"volumes of the image":    volumes,
		"privileged":              host("Privileged", true),
		"bind":                    host("Binds", []string{"/:/host"}),
		"socket":                  host("Binds", []string{"/var/run/docker.sock:/s"}),
		"bind as a mount":         host("Mounts", []any{map[string]any{"Type": "bind", "Source": "/", "Target": "/sandfarm", "ReadOnly": true}}),
		"another volume":          strings.ReplaceAll(good, "farm-agent-1", "postgres"),
		"volume with options":     hostVolume,
		"writable volume":         strings.Replace(good, `"ReadOnly":true`, `"ReadOnly":false`, 1),
		"pids of the host":        host("PidMode", "host"),
		"ipc of the host":         host("IpcMode", "host"),
		"uts of the host":         host("UTSMode", "host"),
		"users of the host":       host("UsernsMode", "host"),
		"cgroups of the host":     host("CgroupnsMode", "host"),
		"network of the host":     host("NetworkMode", "host"),
		"network of a container":  host("NetworkMode", "container:"+theirs),
		"network":                 host("NetworkMode", "bridge"),
		"capability":              host("CapAdd", []string{"SYS_ADMIN"}),
		"capabilities kept":       host("CapDrop", []string{}),
		"device":                  host("Devices", []any{map[string]any{"PathOnHost": "/dev/sda", "PathInContainer": "/dev/sda", "CgroupPermissions": "rwm"}}),
		"rule for devices":        host("DeviceCgroupRules", []string{"a *:* rwm"}),
		"another runtime":         host("Runtime", "evil"),
		"no seccomp":              host("SecurityOpt", []string{"no-new-privileges:true", "seccomp=unconfined"}),
		"new privileges":          host("SecurityOpt", []string{}),
		"all of proc":             host("MaskedPaths", []string{}),
		"writable root":           host("ReadonlyRootfs", false),
		"volumes of another":      host("VolumesFrom", []string{theirs}),
		"another cgroup":          host("CgroupParent", "/"),
		"sysctl":                  host("Sysctls", map[string]string{"kernel.core_pattern": "|/x"}),
		"tmpfs elsewhere":         host("Tmpfs", map[string]string{"/etc": "rw"}),
		"log to a host":           host("LogConfig", map[string]any{"Type": "syslog", "Config": map[string]string{"syslog-address": "udp://10.0.0.1"}}),
		"restarts":                host("RestartPolicy", map[string]any{"Name": "always"}),
		"port":                    host("PortBindings", map[string]any{"80/tcp": []any{}}),
		"host name":               host("ExtraHosts", []string{"a:127.0.0.1"}),
		"file of the container":   host("ContainerIDFile", "/etc/cron.d/x"),
		"annotations":             host("Annotations", map[string]string{"x": "y"}),
		"no limit on memory":      host("Memory", 0),
		"swap":                    host("MemorySwap", -1),
		"unknown field":           host("Privilegedd", true),
		"root":                    top("User", "0:0"),
		"no user":                 top("User", ""),
		"volumes":                 top("Volumes", map[string]any{"/x": map[string]any{}}),
		"health check":            top("Healthcheck", map[string]any{"Test": []string{"CMD", "x"}}),
		"networks":                top("NetworkingConfig", map[string]any{"EndpointsConfig": map[string]any{"front": map[string]any{}}}),
		"another image":           secret,
		"another farm":            strings.Replace(good, `"sandfarm.namespace":"farm"`, `"sandfarm.namespace":"other"`, 1),
		"label of a program":      strings.Replace(good, `"Labels":{`, `"Labels":{"com.docker.compose.project":"x",`, 1),
		"a key in other letters":  strings.Replace(good, `"HostConfig":{`, `"hostconfig":{"Privileged":true},"HostConfig":{`, 1),
		"key only in others":      strings.Replace(good, `"HostConfig":{`, `"hostConfig":{`, 1),
		"a key twice":             strings.Replace(good, `"HostConfig":{`, `"HostConfig":{"Privileged":true},"HostConfig":{`, 1),
		"an inner key twice":      strings.Replace(good, `"Privileged":false`, `"Privileged":true,"Privileged":false`, 1),
		"an inner key in others":  strings.Replace(good, `"Privileged":false`, `"Privileged":false,"privileged":true`, 1),
		"an escaped key":          strings.Replace(good, `"Privileged":false`, `"Privileged":false,"\u0050rivileged":true`, 1),
		"a key with a long s":     strings.Replace(good, `"Devices":null`, `"Devices":null,"Deviceſ":[]`, 1),
		"two documents":           good + good,
		"something behind":        good + "x",
		"half a document":         good[:len(good)/2],
		"an array":                "[" + good + "]",
		"null":                    "null",
		"nothing":                 "",
		"deep":                    strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000),
		"one byte over the limit": good + strings.Repeat(" ", maxBody+1-len(good)),
	} {
		status, text := p.call(t, "POST", "/v1.41/containers/create?name="+name, body)
		if status != http.StatusForbidden {
			t.Errorf("%s: %d %.300s", what, status, text)
		}
	}
	for _, query := range []string{"", "?name=farm-x", "?name=postgres", "?name=" + name + "&platform=linux/arm64", "?name=" + name + "&name=x"} {
		if status, text := p.call(t, "POST", "/v1.41/containers/create"+query, good); status != http.StatusForbidden {
			t.Errorf("create%s: %d %s", query, status, text)
		}
	}
	if changes := p.fake.changes(); len(changes) > 0 {
		t.Errorf("the engine got %v", changes)
	}
	for what, body := range map[string]string{"as it is": good, "one byte below the limit": good + strings.Repeat(" ", maxBody-1-len(good)), "at the limit": good + strings.Repeat(" ", maxBody-len(good))} {
		if status, text := p.call(t, "POST", "/v1.41/containers/create?name="+name, body); status != http.StatusOK {
			t.Errorf("%s: %d %.300s", what, status, text)
		}
	}
	// In chunks, with a trailer, and with a second request behind it: the engine gets what was checked.
	chunked := fmt.Sprintf("POST /v1.41/containers/create?name=%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\nX-Registry-Auth: secret\r\n\r\n%x\r\n%s\r\n0\r\nX: y\r\n\r\n", name, len(good), good)
	if status, text := p.raw(t, chunked+"POST /v1.41/containers/"+theirs+"/start HTTP/1.1\r\nHost: x\r\n\r\n"); status != http.StatusOK {
		t.Errorf("chunked: %d %s", status, text)
	}
	both := fmt.Sprintf("POST /v1.41/containers/create?name=%s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", name, len(good), good)
	if status, _ := p.raw(t, both); status != http.StatusOK && status != http.StatusBadRequest {
		t.Errorf("with a length and chunks: %d", status)
	}
	p.fake.mu.Lock()
	defer p.fake.mu.Unlock()
	for i, call := range p.fake.seen {
		if strings.HasPrefix(call, "POST") && p.fake.body[i] != strings.TrimSpace(good) {
			t.Errorf("the engine got %s %.200q", call, p.fake.body[i])
		}
	}
}

// A farm on which images are built may do more with images, and no more with containers.
func TestBuildsAreAllowedOnRequest(t *testing.T) {
	t.Parallel()
	p := newProxy(t, func(c *engineproxy.Config) { c.Builds = true })
	for target, body := range map[string]string{
		"/v1.41/build?t=a:1&t=a:2&version=1&rm=1&networkmode=none":     "tar",
		"/v1.41/build?t=a:1&networkmode=container:" + builds:           "tar",
		"/v1.41/images/create?fromImage=python&tag=3":                  "",
		"/v1.41/images/create?fromSrc=-&repo=sandfarm/base:1":          "tar",
		"/v1.41/images/sandfarm/base:1/tag?repo=sandfarm/base&tag=new": "",
	} {
		if status, text := p.call(t, "POST", target, body); status != http.StatusOK {
			t.Errorf("%s: %d %s", target, status, text)
		}
	}
	for _, query := range []string{
		"remote=http://x", "cgroupparent=/", "extrahosts=a:1", "securityopt=seccomp=unconfined", "networkmode=host", "networkmode=default", "networkmode=container:x",
		"networkmode=container:" + ours, "networkmode=container:" + theirs, "networkmode=container:" + helper, "version=2", "outputs=x",
	} {
		if !strings.Contains(query, "networkmode") {
			query = strings.TrimPrefix(query+"&networkmode=none", "&")
		}
		if status, text := p.call(t, "POST", "/v1.41/build?"+query, "tar"); status != http.StatusForbidden {
			t.Errorf("build?%s: %d %s", query, status, text)
		}
	}
	for _, query := range []string{"", "?t=a:1", "?t=a:1&networkmode=", "?t=a:1&NetworkMode=none"} { // the engine's default is the bridge
		if status, text := p.call(t, "POST", "/v1.41/build"+query, "tar"); status != http.StatusForbidden {
			t.Errorf("build%s: %d %s", query, status, text)
		}
	}
	if status, _ := p.call(t, "GET", "/v1.41/containers/"+theirs+"/json", ""); status != http.StatusForbidden {
		t.Errorf("another's container: %d", status)
	}
}

// packed is an archive of these entries: folders end with a slash. mode is that of the first.
func packed(t *testing.T, first string, mode int64, others ...string) string {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	for i, name := range append([]string{first}, others...) {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o111, Size: 1}
		if i == 0 {
			h.Mode = mode
		}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		testbed.Must(t, w.WriteHeader(h))
		_, err := w.Write(make([]byte, h.Size))
		testbed.Must(t, err)
	}
	testbed.Must(t, w.Close())
	return b.String()
}
