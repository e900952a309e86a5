//go:build integration

package store_test

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// shebang makes Redis refuse a script on a cluster when it touches keys of several slots, declared or not. Without it a script may touch all slots of its
// node, which are all slots in a cluster of one.
const shebang = "#!lua\n"

// strict is a hook of a Redis client that calls every script with the shebang.
type strict struct {
	hashes sync.Map // of scripts with the shebang, by those without
}

func (s *strict) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *strict) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.rewrite(cmd)
		return next(ctx, cmd)
	}
}

func (s *strict) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.rewrite(cmd)
		}
		return next(ctx, cmds)
	}
}

func (s *strict) rewrite(cmd redis.Cmder) {
	args := cmd.Args()
	switch strings.ToLower(cmd.Name()) {
	case "eval":
		text := args[1].(string)
		args[1] = shebang + text
		s.hashes.Store(hash(text), hash(shebang+text))
	case "evalsha":
		if with, ok := s.hashes.Load(args[1]); ok {
			args[1] = with
		}
	}
}

func hash(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}
