package wire

// JobSpec is what a job was asked to do: the accepted body of its request with the defaults filled in. Fields that the kind
// of the job does not have are absent, and so are the values of env and the contents of files.
type JobSpec struct {
	Code            string   `json:"code,omitempty" doc:"the code"`
	Language        string   `json:"language,omitempty" doc:"language of the code"`
	Context         string   `json:"context,omitempty" doc:"name of the kernel"`
	Commands        []string `json:"commands,omitempty" doc:"the shell commands"`
	Cwd             string   `json:"cwd,omitempty" doc:"working directory of the commands"`
	ContinueOnError bool     `json:"continue_on_error,omitempty" doc:"continue after a command that failed"`
	Background      bool     `json:"background,omitempty" doc:"the commands do not block later jobs of the sandbox"`
	AutoInstall     bool     `json:"auto_install,omitempty" doc:"missing packages are installed first"`
	OnOutputLimit   string   `json:"on_output_limit,omitempty" doc:"what happens when stdout or stderr exceeds limits.max_output_mb" enum:"continue,stop"`
	Packages        []string `json:"packages,omitempty" doc:"packages to install"`
	Manager         string   `json:"manager,omitempty" doc:"installer of the packages" enum:"pip,npm"`
	EnvNames        []string `json:"env_names,omitempty" doc:"names of the environment variables; values are not shown"`

	Name        string            `json:"name,omitempty" doc:"name of the new sandbox"`
	Image       string            `json:"image,omitempty" doc:"image of the new sandbox"`
	Network     string            `json:"network,omitempty" doc:"what the new sandbox can reach" enum:"none,packages,allowlist"`
	AllowHosts  []string          `json:"allow_hosts,omitempty" doc:"rules of the hosts that the new sandbox can reach"`
	Secrets     []string          `json:"secrets,omitempty" doc:"names of the secrets of the new sandbox; values are not kept here"`
	Runtime     string            `json:"runtime,omitempty" doc:"OCI runtime that the new sandbox must have; absent: the default of its node"`
	GPU         *GPU              `json:"gpu,omitempty" doc:"devices of the new sandbox"`
	Resources   *Resources        `json:"resources,omitempty" doc:"what the new sandbox may use"`
	Labels      map[string]string `json:"labels,omitempty" doc:"labels of the new sandbox"`
	TTLSeconds  int               `json:"ttl_seconds,omitempty" doc:"life of the new sandbox"`
	IdleSeconds int               `json:"idle_seconds,omitempty" doc:"life of the new sandbox after the end of its last use"`
	OnIdle      string            `json:"on_idle,omitempty" doc:"what happens when the new sandbox is idle; absent: it is closed" enum:"close,hibernate"`

	Operation string     `json:"operation,omitempty" doc:"what a job of kind file does" enum:"write,tar,many,mkdir,delete,move"`
	Path      string     `json:"path,omitempty" doc:"path in the workspace"`
	To        string     `json:"to,omitempty" doc:"new path of a move"`
	Size      int64      `json:"size,omitempty" doc:"bytes of the upload"`
	Files     []SpecFile `json:"files,omitempty" doc:"files that came with the request, without their content"`

	TimeoutSeconds int    `json:"timeout_seconds,omitempty" doc:"seconds that the job may run"`
	CallbackURL    string `json:"callback_url,omitempty" doc:"address that gets the finished job, without its query"`
	Truncated      bool   `json:"truncated,omitempty" doc:"code, commands or files were cut; GET /v1/jobs/{id}/request has all of it"`
}

// SpecFile is a file that came with a request.
type SpecFile struct {
	Path string `json:"path" doc:"path in the workspace"`
	Size int64  `json:"size" doc:"bytes"`
}
