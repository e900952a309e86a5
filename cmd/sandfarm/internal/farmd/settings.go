package farmd

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/config"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/scheduler"
	"github.com/sandfarm/sandfarm/worker"
)

// Settings are all settings of a farm: from defaults, then a TOML file, then SANDFARM_* variables. The services read the
// parts that concern them.
type Settings struct {
	Data      string           `toml:"data" default:".sandfarm" doc:"Directory of everything that must outlive a stop: Redis, artifacts, keys. Made when missing."`
	Log       LogSettings      `toml:"log"`
	Metrics   MetricsSettings  `toml:"metrics"`
	Telemetry TraceSettings    `toml:"telemetry"`
	API       api.Config       `toml:"api"`
	Worker    worker.Config    `toml:"worker"`
	Scheduler scheduler.Config `toml:"scheduler"`
	Redis     RedisSettings    `toml:"redis"`
	S3        S3Settings       `toml:"s3"`
	Engine    EngineSettings   `toml:"engine"`
	Images    ImageSettings    `toml:"images"`
	Index     index.Config     `toml:"index"`
	// CallbackSecret is the farm's, of which every tenant's signing key is made.
	CallbackSecret string      `toml:"callback_secret" secret:"true" doc:"Secret from which each tenant's callback signing key is derived. Empty: sandfarm up keeps one of its own in the data directory; a worker alone then delivers no callbacks."`
	Limits         farm.Limits `toml:"limits"`
}

// LogSettings say what is logged.
type LogSettings struct {
	Level  string `toml:"level" default:"info" oneof:"debug info warn error" doc:"The least that is logged."`
	Format string `toml:"format" default:"text" oneof:"text json" doc:"Lines for people, or JSON for machines."`
}

// RedisSettings say which Redis holds the records and queues.
type RedisSettings struct {
	URL string `toml:"url" secret:"true" doc:"redis://, rediss:// or unix:// URL. Empty: sandfarm up runs its own; the single services need one."`
}

// S3Settings say which object store holds the artifacts.
type S3Settings struct {
	Endpoint  string `toml:"endpoint" doc:"URL of an S3 service. Empty: sandfarm up runs its own; the single services need one."`
	PublicURL string `toml:"public_url" doc:"URL of the same service as callers reach it; download links are made for it. Empty: endpoint."`
	AccessKey string `toml:"access_key" secret:"true" doc:"Needed with endpoint."`
	SecretKey string `toml:"secret_key" secret:"true" doc:"Needed with endpoint."`
	Bucket    string `toml:"bucket" default:"sandfarm" doc:"Made when missing."`
	Region    string `toml:"region" default:"us-east-1" doc:"Region that requests are signed for."`
	Listen    string `toml:"listen" default:"127.0.0.1:8001" doc:"Where the built-in S3 service of sandfarm up listens."`
}

// EngineSettings say which Docker engine holds the sandboxes.
type EngineSettings struct {
	Host      string `toml:"host" doc:"Address of the engine, such as unix:///var/run/docker.sock. Empty: DOCKER_HOST, or the default socket."`
	Runtime   string `toml:"runtime" doc:"OCI runtime of sandboxes, such as runsc (gVisor). Empty: the engine's default. A worker does not start when it is missing."`
	Namespace string `toml:"namespace" doc:"Prefix of everything made in the engine. Empty: sandfarm, or one of its own for the data directory of sandfarm up."`
}

// ImageSettings say where sandbox images come from.
type ImageSettings struct {
	Base string `toml:"base" default:"python:3.13-slim" doc:"Registry image that sandbox images are built on. Where no registry answers, or with none, a Debian is made with debootstrap."`
}

// defaultSettings are the settings of which the defaults are not in tags.
func defaultSettings() *Settings { return &Settings{Limits: farm.DefaultLimits()} }

// Load reads the settings; file may be empty. All problems are reported at once.
func Load(file string) (*Settings, error) {
	s := defaultSettings()
	problems := config.Load(s, config.Options{File: file})
	data, err := filepath.Abs(s.Data)
	if err != nil {
		return nil, fmt.Errorf("find data directory: %w", err)
	}
	s.Data = data
	s.spread()
	if err := errors.Join(problems, s.validate()); err != nil {
		return nil, err
	}
	return s, nil
}

// WarnOfUnread logs the SANDFARM_* variables of an environment (nil: the process's own) that neither a setting nor a client
// reads: most often typing mistakes, of which nothing else would tell.
func WarnOfUnread(log *slog.Logger, environ []string) {
	for _, name := range config.UnknownEnv(defaultSettings(), config.Options{Environ: environ}, "SANDFARM_CONFIG", "SANDFARM_URL", "SANDFARM_API_KEY") {
		if !strings.HasPrefix(name, "SANDFARM_TEST_") {
			log.Warn("a variable is ignored: it is no setting; \"sandfarm config example\" prints all of them", "variable", name)
		}
	}
}

// spread gives the services what they share.
func (s *Settings) spread() {
	s.API.Limits, s.Worker.Limits, s.Scheduler.Limits = s.Limits, s.Limits, s.Limits
}

func (s *Settings) validate() error {
	var errs []error
	if s.S3.Endpoint != "" && (s.S3.AccessKey == "" || s.S3.SecretKey == "") {
		errs = append(errs, errors.New("s3.endpoint is set, but s3.access_key or s3.secret_key is not"))
	}
	if u := s.Redis.URL; u != "" {
		if _, err := redis.ParseURL(u); err != nil { // its text may hold the password
			errs = append(errs, errBadRedisURL)
		}
	}
	errs = append(errs, s.Limits.Validate(), s.API.Validate(), s.Worker.Validate(), s.Scheduler.Validate(), s.Index.Validate(), s.Telemetry.validate())
	return errors.Join(errs...)
}

// errBadRedisURL says what a Redis URL looks like.
var errBadRedisURL = errors.New("redis.url cannot be read: it must look like redis://host:6379/0 or unix:///path/redis.sock")

// Example renders every setting as a commented TOML file.
func Example() string { return config.Example(defaultSettings()) }

// Markdown renders every setting as a page.
func Markdown() string { return config.Markdown(defaultSettings()) }

// logger makes the logger that the settings ask for, on standard error.
func (l LogSettings) logger() *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // checked by oneof
	options := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}
