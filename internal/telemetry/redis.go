package telemetry

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Redis has the metrics of the Redis commands of a process. Add its Hook to every client of the process.
type Redis struct {
	commands *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

// Values of the label reason: why a command failed.
const (
	reasonReply   = "reply"   // Redis refused it
	reasonTimeout = "timeout" // no answer in time
	reasonNetwork = "network" // no connection, or one that broke
	reasonCaller  = "caller"  // the caller gave up
)

// pipeline is the name under which a batch of commands is counted as one round trip.
const pipeline = "pipeline"

// NewRedis creates the metrics and registers them.
func NewRedis(to prometheus.Registerer) (*Redis, error) {
	r := &Redis{
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_redis_commands_total", Help: "Commands sent to Redis, by name; each command of a pipeline counts.",
		}, []string{"command"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandfarm_redis_round_trip_seconds", Help: "Seconds until Redis answered, by command; a pipeline is one round trip. Blocking commands are left out.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"command"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_redis_errors_total", Help: "Round trips to Redis that went wrong, by reason: reply, timeout, network or caller.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{reasonReply, reasonTimeout, reasonNetwork, reasonCaller} {
		r.errors.WithLabelValues(reason)
	}
	return r, Register(to, r.commands, r.seconds, r.errors)
}

// Hook counts the commands of a client.
func (r *Redis) Hook() redis.Hook { return redisHook{r} }

type redisHook struct{ to *Redis }

// DialHook is part of redis.Hook. A dial that fails is an error of the command that needs it.
func (h redisHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is part of redis.Hook.
func (h redisHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		name := cmd.Name()
		if greeting(name) {
			return next(ctx, cmd)
		}
		began := time.Now()
		err := next(ctx, cmd)
		h.to.commands.WithLabelValues(name).Inc()
		if !blocking(name) {
			h.to.seconds.WithLabelValues(name).Observe(time.Since(began).Seconds())
		}
		h.to.failed(ctx, err)
		return err
	}
}

// ProcessPipelineHook is part of redis.Hook.
func (h redisHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) > 0 && greeting(cmds[0].Name()) {
			return next(ctx, cmds)
		}
		began := time.Now()
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			h.to.commands.WithLabelValues(cmd.Name()).Inc()
		}
		if !slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return blocking(cmd.Name()) }) {
			h.to.seconds.WithLabelValues(pipeline).Observe(time.Since(began).Seconds())
		}
		h.to.failed(ctx, err)
		return err
	}
}

func (r *Redis) failed(ctx context.Context, err error) {
	if reason := reasonOf(ctx, err); reason != "" {
		r.errors.WithLabelValues(reason).Inc()
	}
}

// reasonOf classifies an error; "" for none. A missing key and a script that must be sent in full are not errors.
func reasonOf(ctx context.Context, err error) string {
	var reply redis.Error
	var network net.Error
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return ""
	case errors.As(err, &reply):
		if strings.HasPrefix(err.Error(), "NOSCRIPT") {
			return ""
		}
		return reasonReply
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return reasonCaller
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return reasonTimeout
	default:
		return reasonNetwork
	}
}

// greeting reports whether a command belongs to the handshake of a connection: the client sends it on its own, and older
// servers reject parts of it, which is harmless.
func greeting(name string) bool {
	switch name {
	case "hello", "client", "auth", "select":
		return true
	default:
		return false
	}
}

// blocking reports whether a command waits in Redis for an event: its duration says nothing about Redis.
func blocking(name string) bool {
	switch name {
	case "blpop", "brpop", "blmove", "brpoplpush", "bzpopmin", "bzpopmax", "xread", "xreadgroup", "wait", "waitaof":
		return true
	default:
		return false
	}
}
