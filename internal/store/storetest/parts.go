package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// NoTasks is for store.New: it enqueues nothing.
const NoTasks = "local function enqueueTask() end\n"

// Tasks is for store.New: it lists the jobs that are enqueued instead of making tasks, see Enqueued. Each tenant has a list of its own, in the slot of
// its records.
const Tasks = `local function enqueueTask(queue, id, tenant, job)
  local now = redis.call('TIME')
  redis.call('RPUSH', 'enqueued:' .. KEYS[1], job .. ' ' .. tenant .. ' ' .. now[1] .. string.format('%06d', now[2]))
end
`

// Enqueued lists the jobs that the scripts of a store with Tasks have enqueued since the last call, in that order. A job that was enqueued more
// than once is listed as often.
func Enqueued(ctx context.Context, rdb redis.UniversalClient, prefix string) ([]farm.Ref, error) {
	lists, err := rdb.Keys(ctx, "enqueued:"+prefix+"*").Result()
	if err != nil {
		return nil, fmt.Errorf("find the lists of enqueued jobs: %w", err)
	}
	var entries []string
	for _, list := range lists {
		pipe := rdb.TxPipeline()
		jobs := pipe.LRange(ctx, list, 0, -1)
		pipe.Del(ctx, list)
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, fmt.Errorf("read the list of enqueued jobs: %w", err)
		}
		entries = append(entries, jobs.Val()...)
	}
	slices.SortStableFunc(entries, func(a, b string) int { return strings.Compare(strings.Fields(a)[2], strings.Fields(b)[2]) }) // by time
	refs := make([]farm.Ref, len(entries))
	for i, entry := range entries {
		refs[i] = enqueuedRef(entry)
	}
	return refs, nil
}

// enqueuedRef reads an entry of a list.
func enqueuedRef(entry string) farm.Ref {
	fields := strings.Fields(entry)
	return farm.Ref{Tenant: fields[1], ID: fields[0]}
}

// forgetEnqueued forgets what was enqueued so far.
func (b *bundle) forgetEnqueued(t *testing.T) {
	t.Helper()
	_, err := Enqueued(t.Context(), b.rdb, b.prefix)
	testbed.Must(t, err)
}

// enqueued checks which jobs were enqueued since the last call.
func (b *bundle) enqueued(t *testing.T, what string, want ...*farm.Job) {
	t.Helper()
	refs := make([]farm.Ref, len(want))
	for i, job := range want {
		refs[i] = job.Ref()
	}
	got, err := Enqueued(t.Context(), b.rdb, b.prefix)
	diff := cmp.Diff(refs, got, cmpopts.EquateEmpty())
	testbed.Check(t, err == nil && diff == "", "%s enqueues, %v (-want +got):\n%s", what, err, diff)
}

// enqueueIsFenced enqueues a job as the sweep does, which may be late: only an unfinished job of that attempt whose sandbox is open gets a task.
func enqueueIsFenced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(box.ID)).Job
	b.forgetEnqueued(t)
	enqueue := func(what string, attempt int, want bool) {
		t.Helper()
		enqueued, active, err := b.Enqueue(t.Context(), job.Ref(), attempt, 0)
		testbed.Check(t, err == nil && enqueued == want && !active, "Enqueue of %s = %v, %v, %v; want %v", what, enqueued, active, err, want)
		if want {
			b.enqueued(t, what, job)
		} else {
			b.enqueued(t, what)
		}
	}
	enqueue("a queued job", 0, true)
	enqueue("another attempt", 1, false)
	c := b.claim(t, job.Ref(), "w")
	enqueue("a running job", 1, true)
	enqueue("the attempt before", 0, false)
	b.finish(t, c.Job, farm.JobCompleted)
	enqueue("a finished job", 1, false)
	_, _, err := b.Enqueue(t.Context(), farm.Ref{Tenant: Tenant, ID: "job_none"}, 0, 0)
	testbed.Check(t, err == nil, "Enqueue of an unknown job = %v", err)
	job = b.accept(t, Execute(box.ID)).Job
	b.forgetEnqueued(t)
	b.rdb.HSet(t.Context(), b.prefix+"{"+Tenant+"}:sbx:"+box.ID, "state", string(farm.SandboxLost))
	enqueue("a job of a sandbox that has ended", 0, false)
}

// Documents is an object store in memory. It counts what it is asked for, and fails with Err if that is set.
type Documents struct {
	mu         sync.Mutex
	objects    map[string][]byte
	puts, gets int
	aborted    []string // prefixes of the uploads that were aborted
	err        error
}

// NewDocuments makes an empty one.
func NewDocuments() *Documents { return &Documents{objects: map[string][]byte{}} }

// Fail makes all calls fail with err; nil ends that.
func (d *Documents) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// Keys lists what is stored, in order.
func (d *Documents) Keys() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.objects))
}

// All copies what is stored, by key.
func (d *Documents) All() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.objects)
}

// Calls counts the calls that wrote and read a document.
func (d *Documents) Calls() (puts, gets int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.puts, d.gets
}

// PutDocument implements db.Documents.
func (d *Documents) PutDocument(_ context.Context, key string, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.puts++
	if d.err == nil {
		d.objects[key] = slices.Clone(data)
	}
	return d.err
}

// GetDocument implements db.Documents.
func (d *Documents) GetDocument(_ context.Context, key string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gets++
	if d.err != nil {
		return nil, d.err
	}
	data, ok := d.objects[key]
	if !ok {
		return nil, farm.NotFoundf("There is no such object.")
	}
	return slices.Clone(data), nil
}

// Delete implements db.Documents.
func (d *Documents) Delete(_ context.Context, keys ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		delete(d.objects, key)
	}
	return d.err
}

// DeletePrefix implements db.Documents.
func (d *Documents) DeletePrefix(_ context.Context, prefix string, but ...string) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := len(d.objects)
	maps.DeleteFunc(d.objects, func(key string, _ []byte) bool {
		return strings.HasPrefix(key, prefix) && !slices.Contains(but, key)
	})
	return before - len(d.objects), d.err
}

// Aborted reports whether the uploads under a prefix were aborted.
func (d *Documents) Aborted(prefix string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.aborted, prefix)
}

// AbortUploads implements db.Documents.
func (d *Documents) AbortUploads(_ context.Context, prefix string, _ time.Time) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.aborted = append(d.aborted, prefix)
	return 0, d.err
}

// clock is a clock that the test sets.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Now().UTC().Truncate(time.Microsecond)} }

// Now returns the time.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) forward(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
	return c.at
}

// Dump is the content of a Redis by key, as text that survives a change of Redis' own format.
type Dump map[string]Value

// Value is the value of one key. The field of its type is set.
type Value struct {
	TTL    int64             `json:"ttl_ms,omitempty"` // 0: it never expires
	Text   *string           `json:"string,omitempty"`
	Hash   map[string]string `json:"hash,omitempty"`
	List   []string          `json:"list,omitempty"`
	Set    []string          `json:"set,omitempty"`
	Sorted map[string]string `json:"zset,omitempty"`   // scores by member
	Stream [][]string        `json:"stream,omitempty"` // of each entry its id, then names and values
}

// dumpScript reads every key of a prefix in one step: its name, its type, its time to live, its content.
var dumpScript = redis.NewScript(`
local function text(s) return (string.gsub(s, '[%[%]*?\\]', '\\%0')) end
local out = {}
for _, k in ipairs(redis.call('KEYS', text(ARGV[1]) .. '*')) do
  local kind, v = redis.call('TYPE', k).ok, {}
  if kind == 'string' then v = {redis.call('GET', k)}
  elseif kind == 'hash' then v = redis.call('HGETALL', k)
  elseif kind == 'list' then v = redis.call('LRANGE', k, 0, -1)
  elseif kind == 'set' then v = redis.call('SMEMBERS', k); table.sort(v)
  elseif kind == 'zset' then v = redis.call('ZRANGE', k, 0, -1, 'WITHSCORES')
  elseif kind == 'stream' then v = redis.call('XRANGE', k, '-', '+') end
  table.insert(out, {k, kind, redis.call('PTTL', k), v})
end
return out`)

// ReadDump reads all keys that begin with a prefix, in one step.
func ReadDump(ctx context.Context, rdb redis.UniversalClient, prefix string) (Dump, error) {
	rows, err := dumpScript.Run(ctx, rdb, nil, prefix).Slice()
	if err != nil {
		return nil, fmt.Errorf("read all keys: %w", err)
	}
	out := make(Dump, len(rows))
	for _, row := range rows {
		r, _ := row.([]any)
		name, _ := r[0].(string)
		kind, _ := r[1].(string)
		ttl, _ := r[2].(int64)
		content, _ := r[3].([]any)
		v := Value{TTL: max(ttl, 0)}
		switch kind {
		case "string":
			v.Text = &texts(content)[0]
		case "hash":
			v.Hash = pairs(texts(content))
		case "list":
			v.List = texts(content)
		case "set":
			v.Set = texts(content)
		case "zset":
			v.Sorted = pairs(texts(content))
		case "stream":
			for _, entry := range content {
				e, _ := entry.([]any)
				fields, _ := e[1].([]any)
				v.Stream = append(v.Stream, append(texts(e[:1]), texts(fields)...))
			}
		default:
			return nil, fmt.Errorf("read key %s: its type is %s", name, kind)
		}
		out[name] = v
	}
	return out, nil
}

// LoadDump reads a dump from a file.
func LoadDump(path string) (Dump, error) {
	data, err := os.ReadFile(path) //nolint:gosec // a file of the tests
	if err != nil {
		return nil, fmt.Errorf("load dump: %w", err)
	}
	var d Dump
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("load dump %s: %w", path, err)
	}
	return d, nil
}

// Save writes the dump to a file.
func (d Dump) Save(path string) error {
	data, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return fmt.Errorf("save dump: %w", err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o600)
}

// Restore writes the dump to an empty Redis.
func (d Dump) Restore(ctx context.Context, rdb redis.UniversalClient) error {
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for key, v := range d {
			switch {
			case v.Text != nil:
				pipe.Set(ctx, key, *v.Text, 0)
			case v.Hash != nil:
				pipe.HSet(ctx, key, v.Hash)
			case v.List != nil:
				pipe.RPush(ctx, key, anys(v.List)...)
			case v.Set != nil:
				pipe.SAdd(ctx, key, anys(v.Set)...)
			case v.Sorted != nil:
				for member, score := range v.Sorted {
					pipe.Do(ctx, "ZADD", key, score, member)
				}
			case v.Stream != nil:
				for _, entry := range v.Stream {
					pipe.XAdd(ctx, &redis.XAddArgs{Stream: key, ID: entry[0], Values: entry[1:]})
				}
			}
			if v.TTL > 0 {
				pipe.PExpire(ctx, key, time.Duration(v.TTL)*time.Millisecond)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("restore dump: %w", err)
	}
	return nil
}

func texts(list []any) []string {
	out := make([]string, len(list))
	for i, v := range list {
		switch v := v.(type) {
		case string:
			out[i] = v
		case int64:
			out[i] = strconv.FormatInt(v, 10)
		}
	}
	return out
}

func anys(list []string) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}

func pairs(flat []string) map[string]string {
	out := make(map[string]string, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		out[flat[i]] = flat[i+1]
	}
	return out
}
