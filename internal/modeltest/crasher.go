// Package modeltest is what the model tests share: processes that end at one of their commands of Redis, and how often random runs are made.
package modeltest

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// ErrCrash is what a process sees after its end.
var ErrCrash = errors.New("the process has crashed")

// Crasher is a hook of a Redis client. It ends the client's process at one of its commands: this one and all that follow fail with ErrCrash. The
// zero value passes everything. It is for one goroutine.
type Crasher struct {
	left  int  // commands until the crash; 0: none is planned
	late  bool // the command is carried out, but its answer is lost
	ended bool
}

// Arm plans the end at the command with this number, counted from 1. With late Redis carries the command out, and the answer is lost.
func (c *Crasher) Arm(at int, late bool) { *c = Crasher{left: at, late: late} }

// Heal starts the process anew.
func (c *Crasher) Heal() { *c = Crasher{} }

// Dead reports whether the process has come to its end.
func (c *Crasher) Dead() bool { return c.ended }

// DialHook implements redis.Hook.
func (c *Crasher) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (c *Crasher) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		now, late := c.now()
		if !now || late {
			if err := next(ctx, cmd); !now {
				return err
			}
		}
		cmd.SetErr(ErrCrash)
		return ErrCrash
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c *Crasher) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		now, late := c.now()
		if !now || late {
			if err := next(ctx, cmds); !now {
				return err
			}
		}
		for _, cmd := range cmds {
			cmd.SetErr(ErrCrash)
		}
		return ErrCrash
	}
}

// now counts a command, and reports whether the process ends with it, and whether Redis still carries it out.
func (c *Crasher) now() (crash, late bool) {
	if c.ended {
		return true, false
	}
	if c.left == 0 {
		return false, false
	}
	c.left--
	c.ended = c.left == 0
	return c.ended, c.late
}
