package wire

import (
	"time"
)

// KernelSpec is the file kernel.json of a kernelspec of Jupyter.
type KernelSpec struct {
	Argv      []string          `json:"argv"`
	Display   string            `json:"display_name"`
	Language  string            `json:"language"`
	Interrupt string            `json:"interrupt_mode"`
	Env       map[string]string `json:"env"`
	Metadata  map[string]any    `json:"metadata"`
}

// Image is a sandbox image on offer.
type Image struct {
	Name        string   `json:"name" doc:"name to create a sandbox with"`
	Description string   `json:"description" doc:"what is in it"`
	Languages   []string `json:"languages" doc:"languages it runs"`
	Size        int64    `json:"size" doc:"bytes on disk"`
}

// Worker is a live worker.
type Worker struct {
	ID         string      `json:"id" doc:"id of the worker"`
	Node       string      `json:"node" doc:"the engine it is attached to"`
	Host       string      `json:"host" doc:"its host name"`
	Version    string      `json:"version" doc:"its version"`
	Queues     []string    `json:"queues" doc:"queues it serves"`
	Images     []string    `json:"images" doc:"names of its images"`
	Slots      int         `json:"slots" doc:"jobs of one tenant at once; several have twice as many in all"`
	Running    int         `json:"running" doc:"jobs now"`
	Sandboxes  int         `json:"sandboxes" doc:"open sandboxes of its node, hibernated ones too; for keys without the scope admin those of their tenant"`
	StartedAt  time.Time   `json:"started_at" doc:"when it started"`
	SeenAt     time.Time   `json:"seen_at" doc:"its last heartbeat"`
	Capacity   Room        `json:"capacity" doc:"capacity of its node for sandboxes; zero while the node is drained"`
	Promised   Room        `json:"promised" doc:"how much of that is reserved for sandboxes"`
	Machine    *Machine    `json:"machine" doc:"host of its node, and what all of its programs use; null: not known, such as with an engine on another host"`
	Pool       []PoolStock `json:"pool" doc:"pooled sandboxes of its node"`
	Runtimes   []string    `json:"runtimes" doc:"OCI runtimes that sandboxes of its node may have, the default first"`
	Hibernates []string    `json:"hibernates" doc:"those of runtimes whose sandboxes can hibernate on its node"`
	Problem    string      `json:"problem" doc:"why it accepts no jobs now; empty if it does"`
	Drain      *Drain      `json:"drain" doc:"that its node is drained, and what is left on it; the node's capacity is zero then; null if it is not drained, or for keys without the scope admin"`

	GPUs       []GPUDevice `json:"gpus" doc:"devices that its node offers to sandboxes"`
	GPUsLeased int         `json:"gpus_leased" doc:"how many of them are leased to sandboxes"`
}

// Machine is the host of a node.
type Machine struct {
	MemoryMB int     `json:"memory_mb" doc:"MiB of memory"`
	UsedMB   int     `json:"used_mb" doc:"how much of that is not available to programs"`
	CPUs     float64 `json:"cpus" doc:"cores"`
	Load     float64 `json:"load" doc:"programs that run or wait for a core, a mean over the last minute"`
}

// GPUDevice is a GPU that a node offers.
type GPUDevice struct {
	ID       string `json:"id" doc:"id of the device, unique on its node"`
	Model    string `json:"model" doc:"its model; gpu.model may name it in full or by its beginning up to a dash"`
	MemoryMB int    `json:"memory_mb" doc:"MiB on the device; 0: not known"`
	Leased   bool   `json:"leased" doc:"it is leased to a sandbox"`
}

// PoolStock is the number of pooled sandboxes of an image and a runtime.
type PoolStock struct {
	Image   string `json:"image" doc:"name of the image"`
	Runtime string `json:"runtime,omitempty" doc:"OCI runtime; absent: the default of the image on this node"`
	Target  int    `json:"target" doc:"target of the worker's settings"`
	Ready   int    `json:"ready" doc:"ready members on the node"`
}

// Room is an amount of memory and cores for sandboxes.
type Room struct {
	MemoryMB int     `json:"memory_mb" doc:"MiB of memory"`
	CPUs     float64 `json:"cpus" doc:"cores"`
}

// Queue is the backlog of a queue.
type Queue struct {
	Name    string `json:"name" doc:"name of the queue"`
	Depth   int    `json:"depth" doc:"waiting jobs"`
	Running int    `json:"running" doc:"running jobs"`

	EndedPerMinute float64 `json:"ended_per_minute" doc:"its jobs that ended in a minute, a mean over the last five; 0 for keys without the scope admin"`
	OldestSeconds  float64 `json:"oldest_seconds" doc:"age of the oldest waiting job, on the queue or parked by its tenant's share; 0 if none waits"`

	GPUs       int `json:"gpus" doc:"devices for sandboxes of this queue; 0: none, or a key without the scope admin"`
	GPUsLeased int `json:"gpus_leased" doc:"how many of them are leased to sandboxes"`
}

// Minute is what became of the jobs that workers ended in one minute.
type Minute struct {
	At        time.Time `json:"at" doc:"its beginning"`
	Ended     int       `json:"ended" doc:"jobs that ended"`
	Failed    int       `json:"failed" doc:"of them, those that neither completed nor were canceled"`
	WaitMS    float64   `json:"wait_ms" doc:"mean time from acceptance to claim; 0 without jobs"`
	MaxWaitMS float64   `json:"max_wait_ms" doc:"longest time from acceptance to claim"`
	RunMS     float64   `json:"run_ms" doc:"mean time in the sandbox; 0 without jobs"`
}

// FleetEvent is something that happened to a worker or a node.
type FleetEvent struct {
	ID        string    `json:"id" doc:"id of the event"`
	At        time.Time `json:"at" doc:"when it happened, or was noticed"`
	Kind      string    `json:"kind" doc:"what happened" enum:"worker_started,worker_stopped,worker_lost,worker_problem,worker_recovered,node_ended,drain_started,node_drained,drain_ended"`
	Node      string    `json:"node" doc:"the node"`
	Host      string    `json:"host" doc:"its host name; empty if it is not known"`
	WorkerID  string    `json:"worker_id" doc:"the worker; empty for events of a node"`
	Jobs      int       `json:"jobs" doc:"worker_lost: jobs that it ran, which other workers take over"`
	Sandboxes int       `json:"sandboxes" doc:"node_ended: its sandboxes, which are lost"`
	Detail    string    `json:"detail" doc:"worker_problem: why it accepts no jobs; node_drained: drained, or hibernated if hibernated sandboxes are left"`
}

// Health is the answer of GET /healthz.
type Health struct {
	Status  string `json:"status" doc:"ok"`
	Version string `json:"version" doc:"version of the farm"`
}

// Ready is the answer of GET /readyz.
type Ready struct {
	Status string               `json:"status" doc:"whether the farm can run jobs" enum:"ready,unready"`
	Parts  map[string]PartState `json:"parts" doc:"redis, storage and workers"`
}

// PartState is the state of a part that the farm needs.
type PartState struct {
	OK     bool   `json:"ok" doc:"it works"`
	Detail string `json:"detail,omitempty" doc:"what is wrong with it"`
}

// Limits are the farm's bounds (GET /v1/limits).
type Limits struct {
	MaxBodyBytes  int64 `json:"max_body_bytes" doc:"JSON body"`
	MaxBodyValues int   `json:"max_body_values" doc:"values of a JSON body, arrays and objects counted"`
	MaxCodeBytes  int64 `json:"max_code_bytes" doc:"code of one execution"`
	MaxFileBytes  int64 `json:"max_file_bytes" doc:"one uploaded file or tar"`
	MaxInputBytes int64 `json:"max_input_bytes" doc:"files of one run, together"`

	TimeoutDefaultSeconds int `json:"timeout_default_seconds" doc:"timeout_seconds when none is given"`
	TimeoutMaxSeconds     int `json:"timeout_max_seconds" doc:"largest timeout_seconds"`
	WaitMaxSeconds        int `json:"wait_max_seconds" doc:"largest wait; more counts as this"`

	TTLDefaultSeconds  int `json:"ttl_default_seconds" doc:"ttl_seconds when none is given"`
	TTLMinSeconds      int `json:"ttl_min_seconds" doc:"smallest ttl_seconds"`
	TTLMaxSeconds      int `json:"ttl_max_seconds" doc:"largest ttl_seconds"`
	IdleDefaultSeconds int `json:"idle_default_seconds" doc:"idle_seconds when none is given; 0: no idle limit"`
	IdleMinSeconds     int `json:"idle_min_seconds" doc:"smallest idle_seconds that is not 0"`

	Memory IntRange   `json:"memory_mb" doc:"memory of a sandbox"`
	CPUs   FloatRange `json:"cpus" doc:"cores of a sandbox"`
	PIDs   IntRange   `json:"pids" doc:"processes and threads of a sandbox"`
	Disk   IntRange   `json:"disk_mb" doc:"workspace of a sandbox"`

	MaxEnv          int `json:"max_env" doc:"variables of one request"`
	MaxEnvBytes     int `json:"max_env_bytes" doc:"names and values of them, together"`
	MaxLabels       int `json:"max_labels" doc:"labels of a sandbox"`
	MaxLabelBytes   int `json:"max_label_bytes" doc:"key or value of a label"`
	MaxNameBytes    int `json:"max_name_bytes" doc:"name of a sandbox"`
	MaxCommands     int `json:"max_commands" doc:"commands of one job"`
	MaxPackages     int `json:"max_packages" doc:"packages of one request"`
	MaxPackageBytes int `json:"max_package_bytes" doc:"bytes of one package's name and versions"`
	MaxBatch        int `json:"max_batch" doc:"jobs of one batch"`
	MaxContexts     int `json:"max_contexts" doc:"kernels of a sandbox"`
	MaxAllowHosts   int `json:"max_allow_hosts" doc:"rules in allow_hosts of one sandbox"`
	MaxSecrets      int `json:"max_secrets" doc:"secrets of one sandbox"`
	MaxSecretBytes  int `json:"max_secret_bytes" doc:"bytes of the value of one secret"`
	MaxWaiting      int `json:"max_waiting" doc:"queued jobs of one sandbox"`

	EgressConnections       int `json:"egress_connections" doc:"connections to allowed hosts that a sandbox has open at once"`
	EgressConnectsPerMinute int `json:"egress_connects_per_minute" doc:"connections to hosts that a sandbox may ask for in a minute"`
	EgressMB                int `json:"egress_mb" doc:"MiB that a sandbox may exchange with allowed hosts in its life"`

	MaxProcesses       int `json:"max_processes" doc:"processes that callers started in a sandbox beside its jobs and that run at once"`
	MaxProcessReaders  int `json:"max_process_readers" doc:"readers of the output of one process at once"`
	MaxProcessRestarts int `json:"max_process_restarts" doc:"how often a process is started again after runs of less than a minute"`
	LiveStreams        int `json:"live_streams" doc:"interactive streams that a tenant may have open at once on one worker"`

	MaxOutputMB        int   `json:"max_output_mb" doc:"output of a stream of a job that is kept at all, in MiB; see on_output_limit"`
	MaxStreamInline    int   `json:"max_stream_inline_bytes" doc:"output of a stream kept in the result"`
	MaxResultInline    int   `json:"max_result_inline_bytes" doc:"output of all commands of a job kept in the result"`
	MaxStreamEvents    int   `json:"max_stream_event_bytes" doc:"output of a stream sent as events"`
	MaxInlineRich      int   `json:"max_inline_rich_bytes" doc:"rich result kept in the result"`
	MaxArtifacts       int   `json:"max_artifacts" doc:"files of one run"`
	MaxArtifactBytes   int64 `json:"max_artifact_bytes" doc:"one artifact"`
	LinkSeconds        int   `json:"link_seconds" doc:"lifetime of a presigned link"`
	RetentionSeconds   int   `json:"retention_seconds" doc:"how long finished jobs and artifacts are kept"`
	ClosedSeconds      int   `json:"closed_seconds" doc:"how long closed sandboxes stay readable"`
	IdempotencySeconds int   `json:"idempotency_seconds" doc:"how long an Idempotency-Key is remembered"`
	MaxQueueDepth      int   `json:"max_queue_depth" doc:"jobs of a tenant that wait in one queue"`
	MaxQueued          int   `json:"max_queued" doc:"unfinished jobs of a tenant"`
}

// IntRange bounds a whole number.
type IntRange struct {
	Default int `json:"default" doc:"value if none is given"`
	Min     int `json:"min" doc:"smallest"`
	Max     int `json:"max" doc:"largest"`
}

// FloatRange bounds a number.
type FloatRange struct {
	Default float64 `json:"default" doc:"value if none is given"`
	Min     float64 `json:"min" doc:"smallest"`
	Max     float64 `json:"max" doc:"largest"`
}

// DrainRequest is the body of POST /v1/nodes/{id}/drain.
type DrainRequest struct {
	Idle *string `json:"idle,omitempty" enum:"keep,hibernate,close" default:"keep" doc:"what becomes of sandboxes that were not used for 30 seconds: keep leaves them until they end, hibernate stores those that can on the disk of the node, close closes them"`
}

// Drain says that a node takes no new sandboxes, and what is left on it.
type Drain struct {
	Node       string     `json:"node" doc:"the node"`
	Since      time.Time  `json:"since" doc:"since when it is drained"`
	Idle       string     `json:"idle" enum:"keep,hibernate,close" doc:"what becomes of its idle sandboxes"`
	State      string     `json:"state" enum:"draining,hibernated,drained" doc:"draining: sandboxes or jobs are left, or a worker does not know yet; hibernated: only hibernated sandboxes are left, so the host may be restarted but not removed; drained: nothing is left, so the host may be removed"`
	Sandboxes  int        `json:"sandboxes" doc:"open sandboxes that are left, hibernated ones too"`
	Hibernated int        `json:"hibernated" doc:"hibernated ones among them"`
	Jobs       int        `json:"jobs" doc:"jobs that its workers run, as of their last heartbeats"`
	EndsBy     *time.Time `json:"ends_by" doc:"when the last of its sandboxes expires, unless its deadline is moved; null if none is left"`
}

// NodeNeed is how many nodes of a kind the farm needs, and why.
type NodeNeed struct {
	Kind      string   `json:"kind" enum:"cpu,gpu" doc:"nodes without GPUs, or with some"`
	Model     string   `json:"model" doc:"the model of their GPUs, or of most of them; empty without GPUs"`
	Nodes     int      `json:"nodes" doc:"nodes that take new sandboxes"`
	Wanted    int      `json:"wanted" doc:"how many nodes would take everything that waits, without those that are idle; at least 1 while there is one"`
	IdleNodes int      `json:"idle_nodes" doc:"nodes that could be removed: nothing is on them but members of the warm pool, and nothing that waits needs them"`
	Idle      []string `json:"idle" doc:"their ids, at most 100; drain a node before you remove it"`
	Draining  int      `json:"draining" doc:"nodes that are drained, which are not among nodes"`
	Failing   int      `json:"failing" doc:"nodes whose workers accept no jobs, which are not among nodes"`

	Waiting       int     `json:"waiting" doc:"creates, and runs that make a sandbox, that have waited for at least 5 seconds; not those that a tenant's quota max_running holds back"`
	OldestSeconds float64 `json:"oldest_seconds" doc:"how long the first of them has waited; 0 if none waits"`
	Asked         Room    `json:"asked" doc:"memory and cores that they ask for"`
	AskedGPUs     int     `json:"asked_gpus" doc:"GPUs that they ask for"`
	Placeable     int     `json:"placeable" doc:"of them, those for which the nodes that exist have room"`
	Unfit         int     `json:"unfit" doc:"of them, those that no node of the kind could take even if it were empty, which more of them do not help"`

	Capacity    Room `json:"capacity" doc:"what nodes have for sandboxes"`
	Promised    Room `json:"promised" doc:"how much of that is reserved for sandboxes, without idle members of the warm pool, which give way"`
	PoolMissing int  `json:"pool_missing" doc:"members of the warm pool that nodes want and have not; they are started while nothing waits, and do not count as waiting"`
}
