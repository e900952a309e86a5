package farmd

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinelScheme begins the URL of a Redis that sentinels watch; with an s, sentinels and Redis speak TLS.
const (
	sentinelScheme    = "sentinel://"
	sentinelTLSScheme = "sentinels://"
	// maxSentinels bounds how many sentinels are named; three or five are usual.
	maxSentinels = 32
	sentinelPort = "26379" // where the URL names none
)

// errBadRedisURL shows the forms of a Redis URL.
var errBadRedisURL = errors.New("redis.url is not valid: it must have the form redis://host:6379/0, unix:///path/redis.sock or sentinel://host1:26379,host2:26379,host3:26379/name-of-the-primary?db=0")

// sentinelOptions are what the query of a sentinel URL may set, beside the credentials of the sentinels. Reads of replicas are not among them:
// they may be older than what callers have seen.
func sentinelOptions() []string {
	return []string{"db", "dial_timeout", "read_timeout", "write_timeout", "pool_timeout", "pool_size", "max_retries", "conn_max_idle_time", "skip_verify"}
}

// RedisAddress is where Redis is: one server, or whichever the sentinels say is the primary.
type RedisAddress struct {
	single *redis.Options
	group  *redis.FailoverOptions // nil: single
}

// ParseRedis reads redis.url. Errors do not contain its passwords.
func ParseRedis(text string) (*RedisAddress, error) {
	if strings.HasPrefix(text, sentinelScheme) || strings.HasPrefix(text, sentinelTLSScheme) {
		return parseSentinels(text)
	}
	options, err := redis.ParseURL(text)
	if err != nil { // its text may contain the password
		return nil, errBadRedisURL
	}
	return &RedisAddress{single: withTimeouts(options)}, nil
}

// parseSentinels reads sentinel://[user:password@]host[:port],…/primary[?option=value&…]. User and password are those of Redis.
func parseSentinels(text string) (*RedisAddress, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	rest, query, _ := strings.Cut(rest, "?")
	authority, primary, named := strings.Cut(rest, "/")
	primary, err := url.PathUnescape(primary)
	if !named || primary == "" || err != nil || strings.ContainsAny(primary, "/ ") {
		return nil, errors.New("redis.url names no primary: write its name as the sentinels know it after the hosts, as in sentinel://host1:26379,host2:26379/mymaster")
	}
	var user *url.Userinfo
	hosts := authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		hosts = authority[at+1:]
		parsed, err := url.Parse("redis://" + authority[:at] + "@host")
		if err != nil { // its text may contain the password
			return nil, errors.New("redis.url has a user or password that cannot be read: escape their special characters as %XX")
		}
		user = parsed.User
	}
	sentinels, err := sentinelHosts(hosts)
	if err != nil {
		return nil, err
	}
	given, err := url.ParseQuery(query)
	if err != nil {
		return nil, errors.New("redis.url has options that cannot be read: write them as ?db=0&read_timeout=3s")
	}
	options := url.Values{"master_name": {primary}, "addr": sentinels[1:]}
	through := &url.URL{Scheme: "redis", Host: sentinels[0]}
	if scheme+"://" == sentinelTLSScheme {
		through.Scheme = "rediss"
	}
	if name, password := given.Get("sentinel_username"), given.Get("sentinel_password"); name != "" || password != "" {
		through.User = url.UserPassword(name, password)
	}
	for name, values := range given {
		switch {
		case name == "sentinel_username" || name == "sentinel_password":
		case slices.Contains(sentinelOptions(), name):
			options[name] = values
		default:
			return nil, fmt.Errorf("redis.url has the option %q; allowed with sentinels: sentinel_username, sentinel_password, %s", name, strings.Join(sentinelOptions(), ", "))
		}
	}
	through.RawQuery = options.Encode()
	group, err := redis.ParseFailoverURL(through.String())
	if err != nil { // its text may contain the sentinels' password
		return nil, errors.New("redis.url has an option with a value that is not valid: db, pool_size and max_retries are whole numbers, times are written as 3s, skip_verify as true")
	}
	group.Username, group.Password = user.Username(), ""
	if password, ok := user.Password(); ok {
		group.Password = password
	}
	group.DialTimeout, group.ReadTimeout, group.WriteTimeout = timeouts(group.DialTimeout, group.ReadTimeout, group.WriteTimeout)
	group.MaxRetries, group.ContextTimeoutEnabled = cmp.Or(group.MaxRetries, 1), true
	return &RedisAddress{group: group}, nil
}

// sentinelHosts reads a list of hosts with ports.
func sentinelHosts(list string) ([]string, error) {
	hosts := strings.Split(list, ",")
	if len(hosts) > maxSentinels {
		return nil, fmt.Errorf("redis.url names %d sentinels; at most %d are allowed", len(hosts), maxSentinels)
	}
	for i, host := range hosts {
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = strings.Trim(host, "[]"), sentinelPort
		}
		if name == "" || port == "" || strings.ContainsAny(name, "@/ ") || strings.Contains(name, ":") && net.ParseIP(name) == nil {
			return nil, fmt.Errorf("redis.url: sentinel %d is not a host with a port, such as 10.0.0.1:26379", i+1)
		}
		hosts[i] = net.JoinHostPort(name, port)
	}
	return hosts, nil
}

// Open makes a client, which the caller closes.
func (a *RedisAddress) Open() redis.UniversalClient {
	if a.group != nil {
		options := *a.group
		return redis.NewFailoverClient(&options)
	}
	options := *a.single
	return redis.NewClient(&options)
}

// String names Redis without its password.
func (a *RedisAddress) String() string {
	if a.group != nil {
		return a.group.MasterName + " by the sentinels " + strings.Join(a.group.SentinelAddrs, ", ")
	}
	return a.single.Addr
}

// Route is the network and an address by which Redis is reached: its own, or that of a sentinel.
func (a *RedisAddress) Route() (network, address string) {
	if a.group != nil {
		return "tcp", a.group.SentinelAddrs[0]
	}
	return a.single.Network, a.single.Addr
}

// withTimeouts limits how long a caller waits for a Redis that hangs: two attempts of a few seconds, then 503. The defaults of
// the client add up to 15 seconds. A context's deadline bounds a command too. Values from the URL stay.
func withTimeouts(o *redis.Options) *redis.Options {
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = timeouts(o.DialTimeout, o.ReadTimeout, o.WriteTimeout)
	o.MaxRetries, o.ContextTimeoutEnabled = cmp.Or(o.MaxRetries, 1), true
	return o
}

func timeouts(dial, read, write time.Duration) (time.Duration, time.Duration, time.Duration) {
	return cmp.Or(dial, 2*time.Second), cmp.Or(read, 3*time.Second), cmp.Or(write, 3*time.Second)
}
