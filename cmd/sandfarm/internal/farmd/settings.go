package farmd

import (
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/config"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/signature"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
	"github.com/sandfarm/sandfarm/worker"
)

// Settings are all settings of a farm: defaults, then a TOML file, then SANDFARM_* variables.
type Settings struct {
	Data string `toml:"data" default:".sandfarm" doc:"Directory of all persistent data: Redis, artifacts, keys. Created if missing."`
	// MemoryBudget is in MiB.
	MemoryBudget int                `toml:"memory_budget_mb" min:"0" doc:"MiB that this process may hold in memory for its callers at once: request bodies, output on its way, events being read. What is beyond it waits; one tenant gets at most half. Where one process is both API and worker, each has half. 0: a quarter of the process's memory limit (cgroup or GOMEMLIMIT), or an eighth of the machine's memory where there is none; at most 2048."`
	Log          LogSettings        `toml:"log"`
	Metrics      MetricsSettings    `toml:"metrics"`
	Telemetry    TraceSettings      `toml:"telemetry"`
	API          api.Config         `toml:"api"`
	Worker       worker.Config      `toml:"worker"`
	Scheduler    scheduler.Config   `toml:"scheduler"`
	Redis        RedisSettings      `toml:"redis"`
	S3           S3Settings         `toml:"s3"`
	Engine       EngineSettings     `toml:"engine"`
	Kubernetes   KubernetesSettings `toml:"kubernetes"`
	EngineProxy  ProxySettings      `toml:"engine_proxy"`
	Images       ImageSettings      `toml:"images"`
	Index        index.Config       `toml:"index"`
	Egress       EgressSettings     `toml:"egress"`
	Secrets      SecretSettings     `toml:"secrets"`
	// CallbackSecret is the secret of the farm, from which the signing key of each tenant is derived.
	CallbackSecret string      `toml:"callback_secret" secret:"true" doc:"Secret from which each tenant's callback signing key is derived. Empty: sandfarm up creates one in its data directory; a separate worker delivers no callbacks."`
	Limits         farm.Limits `toml:"limits"`
	// Quotas are the quotas of tenants without their own, see sandfarm tenant set.
	Quotas farm.Quotas `toml:"quotas"`
}

// LogSettings are the settings of the log.
type LogSettings struct {
	Level  string `toml:"level" default:"info" oneof:"debug info warn error" doc:"Lowest level that is logged."`
	Format string `toml:"format" default:"text" oneof:"text json" doc:"Text for people, or JSON for machines."`
}

// RedisSettings name the Redis of records and queues.
type RedisSettings struct {
	URL string `toml:"url" secret:"true" doc:"redis://, rediss:// or unix:// URL, or sentinel://[user:password@]host1:26379,host2:26379,host3:26379/name-of-the-primary (sentinels:// with TLS), with options such as ?db=0. Empty: sandfarm up runs its own; separate services require it."`
	// MaxMemory is in MiB.
	MaxMemory int `toml:"max_memory_mb" min:"0" doc:"MiB of data that the Redis of sandfarm up may hold. Above 70 % of it, callers get 429 for new work. 0: a quarter of the machine's memory, or of the cgroup's limit if that is less; at most 2048. A Redis of redis.url has its own maxmemory."`
	// Durability is a store.Durability.
	Durability string `toml:"durability" default:"everysec" oneof:"everysec aof replica" doc:"What an accepted job, and the end of one, wait for. everysec: for nothing; Redis syncs its append-only file every second. aof: until that file is synced (Redis 7.2 or newer). replica: until a replica has the write. docs/operations.md says what each can lose. The same in all services."`
}

// S3Settings name the S3 service of the artifacts.
type S3Settings struct {
	Endpoint  string `toml:"endpoint" doc:"URL of an S3 service. Empty: sandfarm up runs its own; separate services require it."`
	PublicURL string `toml:"public_url" doc:"URL under which callers reach the service; download links use it. Empty: endpoint."`
	AccessKey string `toml:"access_key" secret:"true" doc:"Required with endpoint."`
	SecretKey string `toml:"secret_key" secret:"true" doc:"Required with endpoint."`
	Bucket    string `toml:"bucket" default:"sandfarm" doc:"Created if missing."`
	Region    string `toml:"region" default:"us-east-1" doc:"Region for signed requests."`
	Listen    string `toml:"listen" doc:"Address of the built-in S3 service of sandfarm up; empty: 127.0.0.1:8001. With endpoint, the address at which an API passes downloads by links on to that service, and nothing else; empty: none. Let callers reach this address, not the service: it bounds what slow readers hold of it."`
}

// EngineSettings name the engine of the sandboxes.
type EngineSettings struct {
	Kind    string `toml:"kind" default:"docker" oneof:"docker kubernetes" doc:"What runs the sandboxes: a Docker engine, or a namespace of the Kubernetes cluster that KUBECONFIG or the worker's own Pod names (docs/kubernetes.md)."`
	Host    string `toml:"host" doc:"Address of the engine, such as unix:///var/run/docker.sock. Empty: DOCKER_HOST, or the default socket."`
	Runtime string `toml:"runtime" doc:"OCI runtime of sandboxes, such as runsc (gVisor); in a cluster, a RuntimeClass. Empty: the default of the engine. A worker does not start if the engine lacks it."`
	// Runtimes do not include Runtime.
	Runtimes []string `toml:"runtimes" doc:"OCI runtimes that callers may choose for a sandbox, beside engine.runtime, such as runc and runsc. Empty: none. A tenant can have a list of its own (sandfarm tenant set --runtimes). A worker does not start if the engine lacks one."`
	// ImageRuntimes are pairs.
	ImageRuntimes []string `toml:"image_runtimes" doc:"OCI runtimes of images whose sandboxes do not have engine.runtime, such as node=runsc. A runtime that the caller chooses, or that is the default of its tenant, goes first."`
	Namespace     string   `toml:"namespace" doc:"Prefix of everything that the farm creates in the engine. Empty: sandfarm, or with sandfarm up one for each data directory. In a cluster the namespace of the sandboxes, which the farm has for itself; empty: that of the worker's Pod, or of the kubeconfig."`
}

// ProxySettings are those of sandfarm engine-proxy, which also reads engine.namespace and engine.runtime.
type ProxySettings struct {
	Socket string `toml:"socket" default:"/run/sandfarm/engine.sock" doc:"Unix socket on which the engine proxy listens. Workers name it in engine.host, as unix:///run/sandfarm/engine.sock."`
	Access string `toml:"access" default:"group" oneof:"owner group all" doc:"Who may connect: the user that runs the proxy, its group too, or everybody who can reach the socket, such as the containers that mount its volume."`
	Host   string `toml:"host" doc:"Address of the engine behind the proxy. Empty: unix:///var/run/docker.sock."`
	Builds bool   `toml:"builds" default:"false" doc:"Let workers build, pull, import, tag and remove images, also those of other programs. The steps of a build run as root in a container, and the engine fetches what they name."`
}

// ImageSettings say what sandbox images are built on.
type ImageSettings struct {
	Base         string          `toml:"base" default:"python:3.13-slim" doc:"Registry image that sandbox images are built on. If no registry answers, or with none, a Debian image is built with debootstrap."`
	Allowed      []string        `toml:"allowed" doc:"Images that workers may make sandboxes of, by id (docker image inspect --format {{.Id}}) or by their digest in a registry: sha256: and 64 hexadecimal digits. Others are not offered; a worker logs their ids. Empty: every image with the label sandfarm.image."`
	SignatureKey string          `toml:"signature_key" doc:"File with the public keys (PEM, such as cosign.pub) of which one must have signed an image. Images without a valid signature in images.signatures are not offered; a worker logs their ids. Empty: images need no signature."`
	Signatures   string          `toml:"signatures" doc:"Folder with the signatures of images, in files NAME.json: the output of cosign download signature, or Sigstore bundles. Workers look into it again within ten seconds. Needed with images.signature_key."`
	Hosts        []farm.HostRule `toml:"hosts" doc:"Hosts that the steps of an image build may reach, beside the package indexes, such as a Debian mirror of your own. Empty: *.debian.org. They may have private addresses, but none of this machine."`
}

// EgressSettings say what sandboxes of the network allowlist may reach.
type EgressSettings struct {
	Allow   []farm.HostRule `toml:"allow" doc:"Hosts that callers may allow to their sandboxes (network allowlist), such as \"api.github.com\", \"*.example.com:8443\" or \"GET;HEAD data.example.com\"; \"*\" is any host at a public address. Empty: the network allowlist is not enabled. The same in the API and in workers. docs/network.md explains the rules."`
	Private []netip.Prefix  `toml:"private" doc:"Ranges of addresses that allowed hosts may have although they are not public, such as 10.20.0.0/16 for a service of your own. Every sandbox with a rule for a name that leads there reaches it. An address of a worker's own machine must be named by itself, such as 10.20.0.5/32. Empty: public addresses only. Workers use it."`
}

// SecretSettings have the keys that seal the secrets of sandboxes.
type SecretSettings struct {
	Key     string   `toml:"key" secret:"true" doc:"Key that encrypts the secrets of sandboxes in Redis: 32 random bytes in base64 (openssl rand -base64 32). The same in the API and in workers. Empty: sandfarm up creates one in its data directory; a separate API refuses secrets."`
	OldKeys []string `toml:"old_keys" secret:"true" doc:"Earlier values of secrets.key, for sandboxes that were made with them. Remove one when the last of these has ended (limits.ttl_max_seconds)."`
}

// defaultSettings has the defaults that are not in tags.
func defaultSettings() *Settings {
	return &Settings{Limits: farm.DefaultLimits(), Quotas: farm.DefaultQuotas()}
}

// Load reads and checks the settings; file may be empty. The error lists all problems.
func Load(file string) (*Settings, error) {
	s := defaultSettings()
	problems := config.Load(s, config.Options{File: file})
	data, err := filepath.Abs(s.Data)
	if err != nil {
		return nil, fmt.Errorf("find data directory: %w", err)
	}
	s.Data = data
	s.share()
	if err := errors.Join(problems, s.validate()); err != nil {
		return nil, err
	}
	return s, nil
}

// WarnOfUnread logs the SANDFARM_* variables of an environment (nil: that of the process) that neither a setting nor a client
// reads. Most are typing mistakes.
func WarnOfUnread(log *slog.Logger, environ []string) {
	for _, name := range config.UnknownEnv(defaultSettings(), config.Options{Environ: environ}, "SANDFARM_CONFIG", "SANDFARM_URL", "SANDFARM_API_KEY", "SANDFARM_API_KEY_FILE") {
		if !strings.HasPrefix(name, "SANDFARM_TEST_") {
			log.Warn("ignored a variable that is not a setting (\"sandfarm config example\" lists all settings)", "variable", name)
		}
	}
}

// share copies what several services have in common into the settings of each: limits and quotas, what sandboxes may reach,
// their runtimes, and what the kind of the engine means for workers.
func (s *Settings) share() {
	if s.Engine.Kind == kindKubernetes && s.Worker.EngineTimeout == 0 {
		s.Worker.EngineTimeout = apiServerTimeout
	}
	s.Worker.Runtimes = s.Engine.Runtimes
	s.Worker.ImageRuntimes, _ = s.Engine.imageRuntimes() // validate reports the error
	s.Worker.AllowedImages = s.Images.Allowed
	s.Worker.Signatures, _ = s.Images.folder() // validate reports the error
	s.Limits.Quotas = s.Quotas
	s.Limits = s.Limits.WithinRetention()
	s.API.Limits, s.Worker.Limits, s.Scheduler.Limits = s.Limits, s.Limits, s.Limits
	s.API.Allow, s.Worker.Allow, s.Worker.Private = s.Egress.Allow, s.Egress.Allow, s.Egress.Private
	keys, _ := s.Secrets.keys() // validate reports the error
	s.API.Secrets, s.Worker.Secrets = keys, keys
}

func (s *Settings) validate() error {
	var errs []error
	if s.S3.Endpoint != "" && (s.S3.AccessKey == "" || s.S3.SecretKey == "") {
		errs = append(errs, errors.New("s3.endpoint is set, but s3.access_key or s3.secret_key is not"))
	}
	if u := s.Redis.URL; u != "" {
		if _, err := ParseRedis(u); err != nil {
			errs = append(errs, err)
		}
	} else if s.Redis.Durability == string(store.DurabilityReplica) {
		errs = append(errs, errors.New("redis.durability is replica, but the Redis of sandfarm up has no replica: set redis.url to a Redis that has one, or redis.durability to aof"))
	}
	_, err := s.Engine.imageRuntimes()
	_, wrongKey := s.Secrets.keys()
	errs = append(errs, err, wrongKey, s.Engine.checkRuntimes(), s.Kubernetes.validate(s.Engine.Kind), s.Images.validate(), s.Limits.Validate(), s.Limits.TenantQuotas().Validate(), s.API.Validate(), s.Worker.Validate(), s.Scheduler.Validate(), s.Index.Validate(), s.Telemetry.validate())
	return errors.Join(errs...)
}

func (s SecretSettings) keys() (*secret.Keys, error) {
	keys, err := secret.ParseKeys(s.Key, s.OldKeys...)
	if err != nil {
		return nil, fmt.Errorf("secrets.key or secrets.old_keys: %w", err)
	}
	return keys, nil
}

// digest is the id of an image, or its digest in a registry.
var digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (s ImageSettings) validate() error {
	for _, id := range s.Allowed {
		if !digest.MatchString(id) {
			return fmt.Errorf("images.allowed contains %q; write ids or digests, as sha256: and 64 hexadecimal digits", id)
		}
	}
	_, err := s.folder()
	return err
}

// folder has the signatures that images need; nil if they need none.
func (s ImageSettings) folder() (*signature.Folder, error) {
	switch {
	case s.SignatureKey == "" && s.Signatures == "":
		return nil, nil
	case s.SignatureKey == "" || s.Signatures == "":
		return nil, errors.New("images.signature_key and images.signatures belong together: set both, or neither")
	}
	keys, err := signature.ReadKeys(s.SignatureKey)
	if err != nil {
		return nil, fmt.Errorf("images.signature_key: %w", err)
	}
	return &signature.Folder{Keys: keys, Path: s.Signatures}, nil
}

// checkRuntimes reports what cannot be a list of runtimes.
func (s EngineSettings) checkRuntimes() error {
	if err := farm.CheckRuntimes(s.Runtimes); err != nil {
		return fmt.Errorf("engine.runtimes: %s", farm.MessageOf(err))
	}
	return nil
}

// imageRuntimes reads engine.image_runtimes: runtimes by the name of the image.
func (s EngineSettings) imageRuntimes() (map[string]string, error) {
	runtimes, errs := map[string]string{}, []error(nil)
	for _, entry := range s.ImageRuntimes {
		image, runtime, ok := strings.Cut(entry, "=")
		_, twice := runtimes[image]
		switch {
		case !ok || image == "" || farm.CheckRuntime(runtime) != nil:
			errs = append(errs, fmt.Errorf("engine.image_runtimes contains %q; write the name of an image and a runtime, as node=runsc", entry))
		case twice:
			errs = append(errs, fmt.Errorf("engine.image_runtimes names the image %s twice", image))
		default:
			runtimes[image] = runtime
		}
	}
	return runtimes, errors.Join(errs...)
}

// Example renders all settings as a commented TOML file.
func Example() string { return config.Example(defaultSettings()) }

// Markdown renders all settings as a page.
func Markdown() string { return config.Markdown(defaultSettings()) }

// logger makes the logger of the process, to standard error. It silences that of the standard library, which nothing here uses: net/http logs the
// bytes by which a server says more than it was asked, and that may be one in a sandbox.
func (l LogSettings) logger() *slog.Logger {
	log.SetOutput(io.Discard) //nolint:forbidigo // there is no other way to silence it
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // checked by oneof
	options := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}
