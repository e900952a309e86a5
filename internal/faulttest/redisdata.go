package faulttest

import (
	"os"
	"path/filepath"
	"time"
)

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
