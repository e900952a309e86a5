package farmd_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
)

func TestRedisURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"redis://10.0.0.1:6380/2": "10.0.0.1:6380",
		"unix:///run/redis.sock":  "/run/redis.sock",
		"sentinel://a/main":       "main by the sentinels a:26379",
		"sentinel://u:p%40ss@a:1,b,[::1]:3/main?db=4&pool_size=9": "main by the sentinels a:1, b:26379, [::1]:3",
		"sentinels://:pass@a:1/main?sentinel_password=other":      "main by the sentinels a:1",
	} {
		got, err := farmd.ParseRedis(text)
		if err != nil || got.String() != want {
			t.Errorf("%s is %v, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"http://nowhere":                           "sentinel://host1",
		"sentinel://a:1":                           "names no primary",
		"sentinel://a:1/":                          "names no primary",
		"sentinel://a:1/b/c":                       "names no primary",
		"sentinel:///main":                         "sentinel 1 is not",
		"sentinel://a:1,,b/main":                   "sentinel 2 is not",
		"sentinel://a:1:2/main":                    "sentinel 1 is not",
		"sentinel://u:sec%ret@a:1/main":            "escape",
		"sentinel://a:1/main?route_randomly=true":  "route_randomly",
		"sentinel://a:1/main?db=secret":            "whole numbers",
		"sentinel://a:1/main?read_timeout=secretl": "whole numbers",
	} {
		_, err := farmd.ParseRedis(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: %v; want an error that says %q and no password", text, err, want)
		}
	}
	for _, n := range []int{31, 32, 33} {
		hosts := make([]string, n)
		for i := range hosts {
			hosts[i] = fmt.Sprintf("h%d:1", i)
		}
		if _, err := farmd.ParseRedis("sentinel://" + strings.Join(hosts, ",") + "/main"); (err != nil) != (n > 32) {
			t.Errorf("%d sentinels: %v", n, err)
		}
	}
}

// The user and password of the URL are those of Redis; the sentinels have their own. TLS is for both.
func TestSentinelCredentials(t *testing.T) {
	t.Parallel()
	address, err := farmd.ParseRedis("sentinels://u:p%40ss@a:1/main?db=4&sentinel_username=s&sentinel_password=q")
	if err != nil {
		t.Fatal(err)
	}
	rdb := address.Open()
	defer func() { _ = rdb.Close() }()
	client, ok := rdb.(*redis.Client)
	if !ok {
		t.Fatalf("Open makes a %T", rdb)
	}
	o := client.Options()
	if o.Username != "u" || o.Password != "p@ss" || o.DB != 4 || o.TLSConfig == nil || o.MaxRetries != 1 || !o.ContextTimeoutEnabled {
		t.Errorf("options of Redis: user %q, db %d, TLS %v, %d retries", o.Username, o.DB, o.TLSConfig != nil, o.MaxRetries)
	}
}
