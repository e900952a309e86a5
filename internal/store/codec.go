package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// decodeJob reads a job's hash: doc holds what never changes, the other fields hold the rest. Documents are not read, see readJob.
func decodeJob(f map[string]string) (*farm.Job, error) {
	var job farm.Job
	if err := json.Unmarshal([]byte(f["doc"]), &job); err != nil {
		return nil, fmt.Errorf("decode job record: %w", err)
	}
	if err := decodeChanges(&job, f); err != nil {
		return nil, err
	}
	return &job, nil
}

// decodeChanges reads what may change after a job was accepted. Documents are not read.
func decodeChanges(job *farm.Job, f map[string]string) error {
	job.State = farm.JobState(f["state"])
	job.Attempt, _ = strconv.Atoi(f["attempt"])
	job.Uncounted, _ = strconv.Atoi(f["spared"])
	job.Worker, job.ArtifactsGone = f["worker"], f["less"] == "1"
	if queue := f["queue"]; queue != "" { // Requeue may have changed it
		job.Queue = queue
	}
	job.Outcome = farm.JobOutcome(f["outcome"])
	job.StartedAt, job.FinishedAt = moment(f["started"]), moment(f["finished"])
	job.Timings = farm.Timings{QueueMS: number(f["qms"]), RunMS: number(f["rms"]), UploadMS: number(f["ums"])}
	if text := f["result"]; text != "" && !isReference(text) {
		if err := json.Unmarshal([]byte(text), &job.Result); err != nil {
			return fmt.Errorf("decode result of job %s: %w", job.ID, err)
		}
	}
	if text := f["error"]; text != "" {
		if err := json.Unmarshal([]byte(text), &job.Error); err != nil {
			return fmt.Errorf("decode error of job %s: %w", job.ID, err)
		}
	}
	return nil
}

// encodeJob encodes the part of a job that never changes, without what it shows of its request if that is too long: then shown has it.
func encodeJob(job *farm.Job) (doc, shown []byte, err error) {
	kept := *job
	kept.State, kept.Attempt, kept.Uncounted, kept.Worker = "", 0, 0, ""
	kept.StartedAt, kept.FinishedAt, kept.Timings = time.Time{}, time.Time{}, farm.Timings{}
	kept.Result, kept.Error, kept.Outcome, kept.ArtifactsGone = nil, nil, "", false
	if doc, err = encode("job", kept); err != nil || len(doc) <= shownBytes || job.Shown == nil {
		return doc, nil, err
	}
	kept.Shown = nil
	if doc, err = encode("job", kept); err != nil {
		return nil, nil, err
	}
	shown, err = encode("shown request", job.Shown)
	return doc, shown, err
}

// encodeSandbox encodes what a sandbox was created with. Of its variables only the names are kept: the values are in the request of the job
// that creates it.
func encodeSandbox(box *farm.Sandbox) ([]byte, error) {
	kept := *box
	kept.Spec.Env = maps.Clone(box.Spec.Env)
	for name := range kept.Spec.Env {
		kept.Spec.Env[name] = ""
	}
	return encode("sandbox", kept)
}

// decodeSandbox reads a sandbox's hash: doc is what it was created with; fields that are set override it.
func decodeSandbox(f map[string]string) (*farm.Sandbox, error) {
	var box farm.Sandbox
	if err := json.Unmarshal([]byte(f["doc"]), &box); err != nil {
		return nil, fmt.Errorf("decode sandbox record: %w", err)
	}
	box.State = farm.SandboxState(f["state"])
	box.ReadyAt, box.ClosedAt = moment(f["ready"]), moment(f["closed"])
	box.LastUsedAt, box.ExpiresAt = moment(f["used"]), moment(f["expires"])
	box.Expired = f["expired"] == "1"
	box.Generation, _ = strconv.Atoi(f["gen"])
	box.Generation = max(box.Generation, 1)
	box.Spec.IdleSeconds, _ = strconv.Atoi(f["idle"])
	for name, to := range map[string]*string{"reason": &box.Reason, "node": &box.Node, "container": &box.Container, "runtime": &box.Runtime} {
		if text, ok := f[name]; ok {
			*to = text
		}
	}
	if name, ok := f["name"]; ok {
		box.Spec.Name = name
	}
	if ttl, ok := f["ttl"]; ok {
		box.Spec.TTLSeconds, _ = strconv.Atoi(ttl)
	}
	if text, ok := f["labels"]; ok {
		box.Spec.Labels = nil
		if err := json.Unmarshal([]byte(text), &box.Spec.Labels); err != nil {
			return nil, fmt.Errorf("decode labels of sandbox %s: %w", box.ID, err)
		}
	}
	if text, ok := f["hosts"]; ok {
		box.Spec.AllowHosts = nil
		if err := json.Unmarshal([]byte(text), &box.Spec.AllowHosts); err != nil {
			return nil, fmt.Errorf("decode hosts of sandbox %s: %w", box.ID, err)
		}
	}
	box.Recent = decodeUse(f["recent"])
	return &box, nil
}

// decodeUse reads samples as usage_add.lua writes them: thousandths of a core and KiB, separated by colons. What cannot be read is left out.
func decodeUse(text string) []farm.UseSample {
	var out []farm.UseSample
	for one := range strings.FieldsSeq(text) {
		cpu, memory, _ := strings.Cut(one, ":")
		milli, err1 := strconv.Atoi(cpu)
		kb, err2 := strconv.Atoi(memory)
		if err1 == nil && err2 == nil {
			out = append(out, farm.UseSample{CPUs: float64(milli) / 1000, MemoryMB: kb >> 10})
		}
	}
	return out
}

func encode(what string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", what, err)
	}
	return data, nil
}

// encodeMaybe encodes v; nil is the empty text.
func encodeMaybe[T any](what string, v *T) ([]byte, error) {
	if v == nil {
		return []byte{}, nil
	}
	return encode(what, v)
}

// moment reads a time as micros wrote it.
func moment(text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

func number(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}
