package relay

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestPathsOfAgentsLiveParts(t *testing.T) {
	t.Parallel()
	id := farm.NewID(farm.SandboxPrefix)
	want := Target{Ref: farm.Ref{Tenant: "acme", ID: id}, Generation: 3}
	got, rest, err := ParsePath(want.path("/v1/live/processes/x"))
	if err != nil || got != want || rest != "/v1/live/processes/x" {
		t.Errorf("%+v, %q, %v", got, rest, err)
	}
	for _, path := range []string{
		"", "/", "/acme", "/acme/" + id + "/3", "/acme/" + id + "/3/", "/acme/" + id + "/x/v1/live/processes", "/acme/sbx_1/3/v1/live/processes",
		"/a b/" + id + "/3/v1/live/processes", "//" + id + "/3/v1/live/processes", "acme/" + id + "/3/v1/live/processes",
		"/acme/" + id + "/3/v1/executions", "/acme/" + id + "/3/v1/live/", "/acme/" + id + "/3/v1/live/../executions",
		"/acme/" + id + "/3/v1/live/processes/../../files", "/acme/" + id + "/3/v1/live//processes", "/acme/" + id + "/3/v1/live/./processes", "/acme/" + id + "/3/v1/livery",
	} {
		if _, rest, err := ParsePath(path); err == nil {
			t.Errorf("%q leads to %q", path, rest)
		}
	}
}

func TestListenAddresses(t *testing.T) {
	t.Parallel()
	for listen, ok := range map[string]bool{
		"auto": true, "auto:8003": true, "none": true, "127.0.0.1:0": true, "10.0.0.7:8003": true, "[::1]:8003": true, "worker.example:65535": true,
		"": false, "127.0.0.1": false, "0.0.0.0:8003": false, ":8003": false, "[::]:8003": false, "127.0.0.1:65536": false, "127.0.0.1:x": false, "auto:-1": false,
	} {
		if err := CheckListen(listen); (err == nil) != ok {
			t.Errorf("%q: %v", listen, err)
		}
	}
	for _, c := range []struct{ listen, network, redis, want string }{
		{"auto", "unix", "/run/redis.sock", "127.0.0.1:0"},
		{"auto:8003", "tcp", "127.0.0.1:6379", "127.0.0.1:8003"},
		{"127.0.0.2:1", "tcp", "127.0.0.1:6379", "127.0.0.2:1"},
	} {
		if got, err := ListenAddress(c.listen, c.network, c.redis); err != nil || got != c.want {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
	if got, err := ListenAddress("auto", "tcp", "no such host:1"); err == nil {
		t.Errorf("an address that cannot be reached: %q", got)
	}
}
