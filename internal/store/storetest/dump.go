package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

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
