package farm

import "time"

// Limits are the farm's bounds on what a caller may ask for. They are settings; GET /v1/limits shows them. The zero
// value of a field means its default (see DefaultLimits).
type Limits struct {
	MaxBodyBytes  int64 `json:"max_body_bytes"`  // JSON body
	MaxCodeBytes  int64 `json:"max_code_bytes"`  // code of one execution
	MaxFileBytes  int64 `json:"max_file_bytes"`  // one uploaded file or tar
	MaxInputBytes int64 `json:"max_input_bytes"` // files of one run, together

	TimeoutDefaultSeconds int `json:"timeout_default_seconds"`
	TimeoutMaxSeconds     int `json:"timeout_max_seconds"`
	WaitMaxSeconds        int `json:"wait_max_seconds"`

	TTLDefaultSeconds  int `json:"ttl_default_seconds"`
	TTLMinSeconds      int `json:"ttl_min_seconds"`
	TTLMaxSeconds      int `json:"ttl_max_seconds"`
	IdleDefaultSeconds int `json:"idle_default_seconds"` // 0: no idle limit
	IdleMinSeconds     int `json:"idle_min_seconds"`

	Memory IntLimits `json:"memory_mb"`
	CPUs   CPULimits `json:"cpus"`
	PIDs   IntLimits `json:"pids"`
	Disk   IntLimits `json:"disk_mb"`

	MaxEnv        int `json:"max_env"`         // variables of one request
	MaxEnvBytes   int `json:"max_env_bytes"`   // names and values together
	MaxLabels     int `json:"max_labels"`      // labels of a sandbox
	MaxLabelBytes int `json:"max_label_bytes"` // key or value
	MaxNameBytes  int `json:"max_name_bytes"`  // name of a sandbox
	MaxCommands   int `json:"max_commands"`    // commands of one job
	MaxBatch      int `json:"max_batch"`       // jobs of one batch
	MaxContexts   int `json:"max_contexts"`    // kernels of a sandbox
	MaxWaiting    int `json:"max_waiting"`     // jobs that wait in one sandbox's line

	MaxStreamInline    int   `json:"max_stream_inline_bytes"` // output of a stream kept in the result: head and tail
	MaxStreamEvents    int   `json:"max_stream_event_bytes"`  // output of a stream sent as events
	MaxInlineRich      int   `json:"max_inline_rich_bytes"`   // rich result kept in the result
	MaxArtifacts       int   `json:"max_artifacts"`           // files of one run
	MaxArtifactBytes   int64 `json:"max_artifact_bytes"`
	LinkSeconds        int   `json:"link_seconds"`        // life of a presigned link
	RetentionSeconds   int   `json:"retention_seconds"`   // finished jobs and artifacts
	ClosedSeconds      int   `json:"closed_seconds"`      // closed sandboxes stay readable
	IdempotencySeconds int   `json:"idempotency_seconds"` // how long an Idempotency-Key is remembered
	HiddenSeconds      int   `json:"-"`                   // records of reads
	MaxQueued          int   `json:"max_queued"`          // jobs of a tenant that are not finished
}

// IntLimits bounds a whole number.
type IntLimits struct {
	Default int `json:"default"`
	Min     int `json:"min"`
	Max     int `json:"max"`
}

// CPULimits bounds cores.
type CPULimits struct {
	Default float64 `json:"default"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
}

// DefaultLimits are the limits of a farm on which nothing is set.
func DefaultLimits() Limits {
	day := int((24 * time.Hour).Seconds())
	return Limits{
		MaxBodyBytes: 16 << 20, MaxCodeBytes: 10 << 20, MaxFileBytes: 5 << 30, MaxInputBytes: 12 << 20,
		TimeoutDefaultSeconds: 300, TimeoutMaxSeconds: day, WaitMaxSeconds: 60,
		TTLDefaultSeconds: day, TTLMinSeconds: 5, TTLMaxSeconds: 7 * day,
		IdleDefaultSeconds: 0, IdleMinSeconds: 5,
		Memory: IntLimits{Default: 2048, Min: 64, Max: 65536},
		CPUs:   CPULimits{Default: 2, Min: 0.05, Max: 64},
		PIDs:   IntLimits{Default: 256, Min: 16, Max: 4096},
		Disk:   IntLimits{Default: 1024, Min: 16, Max: 65536},
		MaxEnv: 256, MaxEnvBytes: 256 << 10, MaxLabels: 64, MaxLabelBytes: 256, MaxNameBytes: 128,
		MaxCommands: 256, MaxBatch: 1000, MaxContexts: 8, MaxWaiting: 10_000,
		MaxStreamInline: 1 << 20, MaxStreamEvents: 8 << 20, MaxInlineRich: 256 << 10,
		MaxArtifacts: 10_000, MaxArtifactBytes: 5 << 30,
		LinkSeconds: 3600, RetentionSeconds: 7 * day, ClosedSeconds: day, IdempotencySeconds: day,
		HiddenSeconds: 300, MaxQueued: 100_000,
	}
}
