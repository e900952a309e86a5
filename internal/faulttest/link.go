package faulttest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// queueScripts are the names of the scripts of asynq, with a piece of the text of each.
func queueScripts() map[string]string {
	return map[string]string{
		"task_dequeue": `redis.call("RPOPLPUSH", KEYS[1], KEYS[3])`,
		"task_done":    `if redis.call("DEL", KEYS[3]) == 0 then`,
		"task_retry":   `redis.call("HSET", KEYS[1], "msg", ARGV[2], "state", "retry")`,
	}
}

// spoilable puts links between the farm's processes and their Redis and object store.
func (f *Farm) spoilable(store, s3 string) {
	f.t.Helper()
	scripts, err := testbed.NewScripts(os.DirFS(filepath.Join(moduleDir(f.t), "internal", "store")), queueScripts())
	if err != nil {
		f.t.Fatalf("read the store's scripts: %v", err)
	}
	f.s3 = newS3Link(f.t, s3)
	for _, name := range f.names("") {
		if name == Redis || name == S3 {
			continue
		}
		f.links[name] = testbed.NewProxyTo(f.t, "tcp", store, scripts)
		f.components[name].env = []string{
			"SANDFARM_REDIS_URL=redis://" + f.links[name].Address(), "SANDFARM_S3_ENDPOINT=" + f.s3.urlOf(name),
			"SANDFARM_METRICS_LISTEN=" + testbed.Address(f.t),
		}
	}
}

// Link is a component's way to Redis. The farm needs Config.Links.
func (f *Farm) Link(name string) *testbed.Proxy { return f.links[name] }

// S3Link is the way of all processes to the object store. The farm needs Config.Links.
func (f *Farm) S3Link() *S3Link { return f.s3 }

// moduleDir is the folder of this module's go.mod.
func moduleDir(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("no go.mod above this folder: ", err)
	return ""
}

// redisData is the folder in which Redis keeps its append-only file.
func (f *Farm) redisData() string { return filepath.Join(f.dir, "appendonlydir") }

// Wipe deletes all data of Redis, as when its disk is lost.
func (f *Farm) Wipe() {
	f.t.Helper()
	if err := f.redis.FlushAll(f.t.Context()).Err(); err != nil {
		f.t.Fatalf("wipe redis: %v", err)
	}
}

// CopyRedis copies the data of Redis, for RestoreRedis.
func (f *Farm) CopyRedis() (dir string) {
	f.t.Helper()
	if err := f.redis.BgRewriteAOF(f.t.Context()).Err(); err != nil {
		f.t.Fatalf("copy the data of redis: %v", err)
	}
	f.Until(30*time.Second, "the append-only file is written", func() bool {
		info, err := f.redis.InfoMap(f.t.Context(), "persistence").Result()
		return err == nil && info["Persistence"]["aof_rewrite_in_progress"] == "0" && info["Persistence"]["aof_rewrite_scheduled"] == "0"
	})
	dir = filepath.Join(f.t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(f.redisData())); err != nil {
		f.t.Fatalf("copy the data of redis: %v", err)
	}
	return dir
}

// RestoreRedis kills Redis and starts it again on an older copy of its data.
func (f *Farm) RestoreRedis(dir string) {
	f.t.Helper()
	f.Kill(Redis)
	err := os.RemoveAll(f.redisData())
	if err == nil {
		err = os.CopyFS(f.redisData(), os.DirFS(dir))
	}
	if err != nil {
		f.t.Fatalf("restore the data of redis: %v", err)
	}
	f.Start(Redis)
}
