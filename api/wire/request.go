package wire

// CreateRequest is the body of POST /v1/sandboxes. Nil: the farm's default.
type CreateRequest struct {
	Name        string            `json:"name,omitempty" doc:"name of the sandbox; need not be unique"`
	Image       *string           `json:"image,omitempty" doc:"name of the image (GET /v1/images)" default:"python"`
	GPU         *GPURequest       `json:"gpu,omitempty" doc:"devices; needs a worker that has them"`
	Resources   *ResourcesRequest `json:"resources,omitempty" doc:"what the sandbox may use"`
	Network     *string           `json:"network,omitempty" doc:"what the sandbox can reach: nothing, package indexes, or these and the hosts of allow_hosts; allowlist must be enabled by the operator" enum:"none,packages,allowlist" default:"packages"`
	AllowHosts  []string          `json:"allow_hosts,omitempty" doc:"rules of the hosts that the network allowlist reaches, such as api.github.com, *.example.com or GET,HEAD data.example.com:8080"`
	Secrets     map[string]Secret `json:"secrets,omitempty" doc:"headers that the proxy adds to HTTPS requests for a host, by the name of an environment variable, which gets a placeholder; code never sees the values. They need the network allowlist"`
	Runtime     *string           `json:"runtime,omitempty" doc:"OCI runtime of the sandbox, such as runsc (gVisor), within what the operator allows; absent: the default of the tenant, or else of the image, or else of the node"`
	Env         map[string]string `json:"env,omitempty" doc:"environment of everything in the sandbox; a name has at most 128 bytes"`
	Packages    []string          `json:"packages,omitempty" doc:"Python packages to install first, as in POST …/packages"`
	TTLSeconds  *int              `json:"ttl_seconds,omitempty" doc:"life from now"`
	IdleSeconds *int              `json:"idle_seconds,omitempty" doc:"life after the end of the last use; 0: no idle limit"`
	OnIdle      *string           `json:"on_idle,omitempty" doc:"what happens when it has been idle for idle_seconds; hibernate needs a node that can" enum:"close,hibernate" default:"close"`
	Labels      map[string]string `json:"labels,omitempty" doc:"labels to find it by"`
	CallbackURL string            `json:"callback_url,omitempty" doc:"http(s) address that gets the finished job"`
}

// GPURequest are the devices that a caller requests. A model without a count is one device.
type GPURequest struct {
	Count *int   `json:"count,omitempty" doc:"number of devices; 0: none; absent: 1 if a model is given, else none"`
	Model string `json:"model,omitempty" doc:"model that the devices must have"`
}

// ResourcesRequest are the resources that a caller requests. Nil: the farm's default.
type ResourcesRequest struct {
	MemoryMB *int     `json:"memory_mb,omitempty" doc:"MiB of memory"`
	CPUs     *float64 `json:"cpus,omitempty" doc:"cores"`
	PIDs     *int     `json:"pids,omitempty" doc:"processes and threads"`
	DiskMB   *int     `json:"disk_mb,omitempty" doc:"MiB of the workspace"`
}

// UpdateRequest is the body of PATCH /v1/sandboxes/{id}. Absent fields do not change; labels replace all labels.
type UpdateRequest struct {
	Name        *string            `json:"name,omitempty" doc:"new name"`
	TTLSeconds  *int               `json:"ttl_seconds,omitempty" doc:"new life, from now"`
	IdleSeconds *int               `json:"idle_seconds,omitempty" doc:"new life after the end of the last use; 0: no idle limit"`
	Labels      *map[string]string `json:"labels,omitempty" doc:"the new labels; they replace the old ones"`
	AllowHosts  *[]string          `json:"allow_hosts,omitempty" doc:"the new rules of a sandbox with the network allowlist; they replace the old ones, and connections that they do not allow end"`
	// Secrets are new values, by the name of a secret that the sandbox has.
	Secrets map[string]NewSecret `json:"secrets,omitempty" doc:"new values of secrets that the sandbox has, by name; requests from then on have them. Names, hosts and headers stay as they were"`
}

// ExecuteRequest is the body of POST /v1/sandboxes/{id}/execute.
type ExecuteRequest struct {
	Code           string            `json:"code" doc:"the code" required:"true"`
	Language       *string           `json:"language,omitempty" doc:"a language of the image" default:"python"`
	Filename       string            `json:"filename,omitempty" doc:"name of the file in the workspace that the code is from: its __file__ and sys.argv[0]; errors name it. Python only"`
	Context        *string           `json:"context,omitempty" doc:"name of the kernel; each keeps its own variables" default:"default"`
	TimeoutSeconds *int              `json:"timeout_seconds,omitempty" doc:"seconds that the code may run" default:"300"`
	AutoInstall    bool              `json:"auto_install,omitempty" doc:"install what the code imports and the sandbox lacks, and what the workspace's requirements.txt lists"`
	OnOutputLimit  *string           `json:"on_output_limit,omitempty" doc:"what happens when stdout or stderr exceeds limits.max_output_mb: continue drops the middle of the output, stop ends the code" enum:"continue,stop" default:"continue"`
	Env            map[string]string `json:"env,omitempty" doc:"environment of this execution only; a name has at most 128 bytes"`
	CallbackURL    string            `json:"callback_url,omitempty" doc:"http(s) address that gets the finished job"`
}

// CommandRequest is the body of POST /v1/sandboxes/{id}/commands: one command or several.
type CommandRequest struct {
	Command         *string           `json:"command,omitempty" doc:"one shell command or script"`
	Commands        []string          `json:"commands,omitempty" doc:"several commands, run one after the other"`
	Cwd             string            `json:"cwd,omitempty" doc:"working directory, relative to the workspace"`
	Env             map[string]string `json:"env,omitempty" doc:"environment of these commands only; a name has at most 128 bytes"`
	TimeoutSeconds  *int              `json:"timeout_seconds,omitempty" doc:"seconds for all commands together" default:"300"`
	ContinueOnError bool              `json:"continue_on_error,omitempty" doc:"continue after a command that failed"`
	Background      bool              `json:"background,omitempty" doc:"do not block later jobs of the sandbox"`
	AutoInstall     bool              `json:"auto_install,omitempty" doc:"install what the Python programs that the commands start import and the sandbox lacks, and what the requirements.txt beside them lists"`
	OnOutputLimit   *string           `json:"on_output_limit,omitempty" doc:"what happens when stdout or stderr exceeds limits.max_output_mb: continue drops the middle of the output, stop ends the commands" enum:"continue,stop" default:"continue"`
	CallbackURL     string            `json:"callback_url,omitempty" doc:"http(s) address that gets the finished job"`
}

// RunRequest is the body of POST /v1/run: code in a fresh sandbox that is closed afterwards.
type RunRequest struct {
	Code           string            `json:"code" doc:"the code" required:"true"`
	Language       *string           `json:"language,omitempty" doc:"a language of the image" default:"python"`
	Filename       string            `json:"filename,omitempty" doc:"name of the file in the workspace that the code is from: its __file__ and sys.argv[0]; errors name it. Python only"`
	Packages       []string          `json:"packages,omitempty" doc:"Python packages to install first, as in POST …/packages"`
	AutoInstall    bool              `json:"auto_install,omitempty" doc:"install what the code imports and the sandbox lacks, and what the workspace's requirements.txt lists"`
	OnOutputLimit  *string           `json:"on_output_limit,omitempty" doc:"what happens when stdout or stderr exceeds limits.max_output_mb: continue drops the middle of the output, stop ends the code" enum:"continue,stop" default:"continue"`
	Files          []InputFile       `json:"files,omitempty" doc:"files to put into the workspace first"`
	Env            map[string]string `json:"env,omitempty" doc:"environment of the sandbox; a name has at most 128 bytes"`
	Network        *string           `json:"network,omitempty" doc:"what the sandbox can reach: nothing, package indexes, or these and the hosts of allow_hosts; allowlist must be enabled by the operator" enum:"none,packages,allowlist" default:"packages"`
	AllowHosts     []string          `json:"allow_hosts,omitempty" doc:"rules of the hosts that the network allowlist reaches, as for POST /v1/sandboxes"`
	Secrets        map[string]Secret `json:"secrets,omitempty" doc:"headers that the proxy adds to HTTPS requests for a host, as for POST /v1/sandboxes"`
	Runtime        *string           `json:"runtime,omitempty" doc:"OCI runtime of the sandbox, such as runsc (gVisor), within what the operator allows; absent: the default of the tenant, or else of the image, or else of the node"`
	GPU            *GPURequest       `json:"gpu,omitempty" doc:"devices; needs a worker that has them"`
	Resources      *ResourcesRequest `json:"resources,omitempty" doc:"what the sandbox may use"`
	TimeoutSeconds *int              `json:"timeout_seconds,omitempty" doc:"seconds that the code may run" default:"300"`
	Image          *string           `json:"image,omitempty" doc:"name of the image (GET /v1/images)" default:"python"`
	Labels         map[string]string `json:"labels,omitempty" doc:"labels of the sandbox"`
	CallbackURL    string            `json:"callback_url,omitempty" doc:"http(s) address that gets the finished job"`
}

// InputFile is a file that comes with a run: content is text, content_base64 any bytes.
type InputFile struct {
	Path          string  `json:"path" doc:"path in the workspace" required:"true"`
	Content       *string `json:"content,omitempty" doc:"text of the file"`
	ContentBase64 *string `json:"content_base64,omitempty" doc:"bytes of the file, in base64"`
}

// PackagesRequest is the body of POST /v1/sandboxes/{id}/packages.
type PackagesRequest struct {
	Packages       []string `json:"packages" doc:"names, with a version if wanted: numpy, pandas>=2" required:"true"`
	Manager        *string  `json:"manager,omitempty" doc:"the installer" enum:"pip,npm" default:"pip"`
	TimeoutSeconds *int     `json:"timeout_seconds,omitempty" doc:"seconds that the install may take" default:"300"`
	CallbackURL    string   `json:"callback_url,omitempty" doc:"http(s) address that gets the finished job"`
}

// MoveRequest is the body of POST /v1/sandboxes/{id}/files/move.
type MoveRequest struct {
	From        string `json:"from" doc:"path in the workspace" required:"true"`
	To          string `json:"to" doc:"new path in the workspace" required:"true"`
	CallbackURL string `json:"callback_url,omitempty" doc:"http(s) address that gets the finished job"`
}

// ControlRequest is the optional body of interrupt and restart.
type ControlRequest struct {
	Context     string `json:"context,omitempty" doc:"one kernel; absent: all of them"`
	CallbackURL string `json:"callback_url,omitempty" doc:"http(s) address that gets the finished job"`
}

// HibernateRequest is the optional body of hibernate and resume.
type HibernateRequest struct {
	CallbackURL string `json:"callback_url,omitempty" doc:"http(s) address that gets the finished job"`
}

// Secret is a header that the proxy adds to requests of a sandbox for one host.
type Secret struct {
	Host   string `json:"host" doc:"one exact host name, which allow_hosts must allow; the port is 443" required:"true"`
	Header string `json:"header" doc:"name of the header, and what stands before the value if anything does: X-Api-Key, or Authorization: Bearer" required:"true"`
	Value  string `json:"value" doc:"the value, at least 8 characters; it is stored encrypted until the sandbox ends and never shown" required:"true"`
}

// NewSecret is a new value of a secret.
type NewSecret struct {
	Value string `json:"value" doc:"the value, at least 8 characters; it is stored encrypted until the sandbox ends and never shown" required:"true"`
}

// String does not contain the value, so that no log does.
func (s NewSecret) String() string { return "a new value" }

// GoString is String.
func (s NewSecret) GoString() string { return s.String() }

// String does not contain the value, so that no log does.
func (s Secret) String() string { return s.Header + " for " + s.Host }

// GoString is String.
func (s Secret) GoString() string { return s.String() }
