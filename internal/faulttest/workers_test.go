//go:build faults

package faulttest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A worker is taken away for a while, or for ever, while it runs jobs.
func TestWorkersAreAway(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	f := newFarm(t, faulttest.Config{Workers: 3, Links: true, Command: func(name string, argv []string) []string {
		if name != "worker-3" {
			return argv
		}
		return append([]string{"env", "TMPDIR=" + disk, "SANDFARM_DATA=" + disk}, argv...)
	}})
	workers := f.Workers()
	for _, d := range []time.Duration{12 * time.Second, 60 * time.Second}[:min(2, rounds())] {
		t.Run("Paused"+d.String(), func(t *testing.T) { away(t, f, "worker paused while code prints", d, f.Pause, f.Resume) })
	}
	t.Run("CutOff", func(t *testing.T) {
		away(t, f, "worker cut off from Redis, beside its successor", 15*time.Second,
			func(names ...string) { f.Link(names[0]).Hold(true) }, func(names ...string) { f.Link(names[0]).Hold(false) })
	})
	t.Run("DiskFull", func(t *testing.T) { diskFull(t, f, disk) })
	t.Run("OutOfMemory", func(t *testing.T) { outOfMemory(t, f) })
	t.Run("AllKilled", func(t *testing.T) {
		c := f.Case(t, "all workers killed, one started")
		boxes := c.Boxes(4)
		for range rounds() {
			work(c, boxes)
			moment(2 * time.Second)
			c.Fault(func() { f.Kill(workers...) }, func() { f.Start(workers[0]); f.AwaitReady() })
			f.Start(workers[1:]...)
			f.AwaitReady()
		}
		c.End()
	})
	t.Run("LeaderPaused", func(t *testing.T) {
		c := f.Case(t, "leading scheduler paused for 12 s, a worker killed")
		boxes := c.Boxes(3)
		for range rounds() {
			jobs := work(c, boxes)
			var leader string
			f.Until(60*time.Second, "a scheduler leads", func() bool { leader = f.Leader(); return leader != "" })
			holder := f.AwaitHolder(jobs[0].ID)
			c.Fault(func() { f.Pause(leader); f.Kill(holder) }, func() {
				<-time.After(12 * time.Second)
				f.Resume(leader)
			})
			f.Start(holder)
			f.AwaitReady()
		}
		c.End()
	})
	f.End()
}

// away takes the worker of jobs that print away for a while. Another one takes them over; then the first comes back and believes that it has
// them still. No text appears twice.
func away(t *testing.T, f *faulttest.Farm, name string, d time.Duration, take, give func(names ...string)) {
	c := f.Case(t, fmt.Sprintf("%s, %s", name, d))
	boxes := c.Boxes(4)
	for range rounds() {
		var jobs []*faulttest.Job
		for _, box := range boxes {
			jobs = append(jobs, c.Insist(box, faulttest.Run{Lines: int(d/(100*time.Millisecond)) + 40, Files: 1}))
		}
		holder := f.AwaitHolder(jobs[0].ID)
		moment(time.Second)
		c.Fault(func() { take(holder) }, func() {
			<-time.After(d)
			give(holder)
		})
		for _, j := range jobs {
			if end, err := f.Wait(t.Context(), j.ID); err != nil || end.State != "completed" {
				t.Errorf("a job: %v %+v", err, end.Error)
			}
		}
	}
	c.End()
}

// smallDisk mounts a disk of 4 MiB. It needs root.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	testbed.Must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// diskFull fills the disk of the only worker: output and files pass through it all the same.
func diskFull(t *testing.T, f *faulttest.Farm, disk string) {
	c := f.Case(t, "disk of the worker full")
	boxes := c.Boxes(3)
	others := f.Workers()[:2]
	f.Term(others...)
	file := filepath.Join(disk, "full")
	c.Fault(func() {
		if err := os.WriteFile(file, make([]byte, 5<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("fill the disk: %v", err)
		}
	}, nil)
	for range rounds() {
		work(c, boxes)
		c.Insist(boxes[0], faulttest.Run{Code: "open('large.bin', 'wb').write(bytes(20 << 20))\nfor _ in range(100): print('x' * 100_000)", Want: []string{"completed"}})
		if err := f.Files(boxes[1]).Write(t.Context(), "sent.bin", bytes.NewReader(make([]byte, 20<<20))); err != nil {
			t.Errorf("upload: %v", err)
		}
		settled(t, f, c)
	}
	if err := os.Remove(file); err != nil {
		t.Error(err)
	}
	f.Start(others...)
	f.AwaitReady()
	c.End()
}

// outOfMemory lets the kernel kill a worker for its memory: it is moved into a cgroup in which it cannot have any more.
func outOfMemory(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "worker killed for its memory")
	boxes := c.Boxes(4)
	for range rounds() {
		jobs := work(c, boxes)
		holder := f.AwaitHolder(jobs[0].ID)
		c.Fault(func() {
			squeeze(t, f.PID(holder))
			for began := time.Now(); f.Alive(holder); <-time.After(200 * time.Millisecond) {
				if time.Since(began) > 3*time.Minute {
					t.Fatal("the kernel did not kill the worker")
				}
				c.Insist(boxes[0], faulttest.Run{Code: "print('x' * 200_000)", Out: xs(200_000)}) // it needs memory
			}
		}, nil)
		f.Start(holder)
		f.AwaitReady()
	}
	c.End()
}

// xs is what print('x' * n) prints.
func xs(n int) string { return string(slices.Repeat([]byte("x"), n)) + "\n" }

// squeeze moves a process into a memory cgroup of 1 MiB. What it has stays where it was charged.
func squeeze(t *testing.T, pid int) {
	t.Helper()
	for _, l := range [][2]string{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(l[0], fmt.Sprintf("sandfarm-faults-%d", pid))
		if _, err := os.Stat(filepath.Join(l[0], "cgroup.procs")); err != nil || os.Mkdir(dir, 0o755) != nil { //nolint:gosec // a cgroup
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		err := os.WriteFile(filepath.Join(dir, l[1]), []byte(strconv.Itoa(1<<20)), 0)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		}
		if err == nil {
			return
		}
		t.Logf("%s: %v", dir, err)
	}
	t.Fatal("no memory cgroup can be made here")
}

// nodeGone takes a node away, engine and worker, for longer than the farm's timeout: its sandboxes and their jobs are lost, with a sentence
// that says so, what was not ready starts elsewhere, and its queue is gone. Then the node comes back: its old containers are removed, and it
// takes new work. The scheduler that ends the node is killed at a point; the next one goes on.
func (e *engineCase) nodeGone(t *testing.T, p point) {
	c := e.Case(t, "a node gone for ever, then back")
	boxes := e.boxesThere(t, c, 3)
	c.Forget() // the effects of ended jobs are lost with the node
	var jobs []*faulttest.Job
	for n, box := range boxes {
		want := []string{"lost"}
		if n == 2 { // it may be closed before the node is gone
			want = []string{"lost", "canceled"}
		}
		jobs = append(jobs,
			c.Accept(box, faulttest.Run{Lines: 600, Want: want}),
			c.Accept(box, faulttest.Run{Want: []string{"canceled", "lost"}, Never: true}))
		e.AwaitHolder(jobs[len(jobs)-2].ID)
	}
	closing, err := e.Close(t.Context(), boxes[2])
	testbed.Must(t, err)
	node := e.nodeOf(t, boxes[0])
	with := map[string]string{"node_lease": "drop", "hdel": node, "srem": node}[p.call] // else the leader calls it also for others
	creates := e.startSome(t)
	t.Cleanup(func() {
		if t.Failed() {
			e.engine.Resume()
		}
	})
	c.Fault(func() {
		e.engine.Pause() // nothing in the containers notices
		e.Kill(e.doomed)
	}, killLeader(t, e.Farm, p, with, 1))
	for _, made := range creates {
		if end, err := e.Wait(t.Context(), made.Job.ID); err != nil || end.State != "completed" {
			t.Errorf("create: %v %s %+v", err, end.State, end.Error)
		}
	}
	for _, j := range jobs {
		end, err := e.Wait(t.Context(), j.ID)
		if err != nil || end.Error == nil || len(end.Error.Message) < 20 {
			t.Errorf("a job of the node that is gone: %v %+v", err, end)
		}
	}
	if end, err := e.Wait(t.Context(), closing.ID); err != nil || end.State != "completed" {
		t.Errorf("the close of a sandbox of the node that is gone: %v %+v", err, end)
	}
	for _, box := range boxes {
		e.Until(30*time.Second, "the sandbox has ended", func() bool {
			now, err := e.Sandbox(t.Context(), box)
			return err == nil && slices.Contains([]string{"lost", "closed", "expired"}, now.State)
		})
	}
	e.Until(30*time.Second, "the node's queue is gone", func() bool {
		left, err := e.Redis().Keys(t.Context(), "asynq:{node-"+node+"}:*").Result()
		return err == nil && !slices.ContainsFunc(left, func(key string) bool {
			ends, err := e.Redis().TTL(t.Context(), key).Result()
			return err != nil || ends == -1 // the queue's counts of a day end by themselves
		})
	})
	e.engine.Resume()
	e.Start(e.doomed)
	e.AwaitReady()
	e.Until(60*time.Second, "the old containers of the node are removed", func() bool {
		return !slices.ContainsFunc(e.Containers(), func(box string) bool { return slices.Contains(boxes, box) })
	})
	for _, made := range creates {
		c.Own(made.Sandbox.ID)
	}
	c.Abandon(boxes...)
	e.boxesThere(t, c, 1)
	c.End()
}

// nodeOf is the node of a sandbox.
func (e *engineCase) nodeOf(t *testing.T, box string) string {
	t.Helper()
	node, err := e.Redis().HGet(t.Context(), "sf:{default}:sbx:"+box, "node").Result()
	if err != nil || node == "" || strings.ContainsAny(node, "*?[") {
		t.Fatalf("the node of %s: %q, %v", box, node, err)
	}
	return node
}

// notebook is a client of Jupyter: what it shows of its cells, by their ids.
type notebook struct {
	url    string
	output map[string]string
	ended  map[string][]string // replies
	conn   *websocket.Conn
}

// The API is killed while one cell runs and another waits behind it. They go on, and the notebook, when it connects again, shows all of their
// output once and one end of each.
func TestNotebookOutlivesTheAPI(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 1, Schedulers: 1})
	answer, err := http.Post(f.URL()+"/jupyter/api/kernels", "application/json", strings.NewReader(`{}`))
	testbed.Must(t, err)
	var kernel struct{ ID string }
	err = json.NewDecoder(answer.Body).Decode(&kernel)
	_ = answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusCreated {
		t.Fatalf("start a kernel: %s, %v", answer.Status, err)
	}
	n := notebook{url: f.URL() + "/jupyter/api/kernels/" + kernel.ID + "/channels?session_id=s", output: map[string]string{}, ended: map[string][]string{}}
	n.connect(t)
	n.run(t, "first", "runs = 1\nimport time\nfor i in range(40):\n    print('part', i, flush=True)\n    time.sleep(0.1)")
	n.run(t, "second", "runs += 1\nprint('runs', runs)")
	for strings.Count(n.output["first"], "\n") < 3 {
		testbed.Must(t, n.read(t))
	}
	f.Kill(faulttest.API)
	for n.read(t) == nil {
	}
	f.Start(faulttest.API)
	f.AwaitReady()
	n.connect(t)
	for len(n.ended["second"]) == 0 {
		testbed.Must(t, n.read(t))
	}
	var parts strings.Builder
	for i := range 40 {
		fmt.Fprintln(&parts, "part", i)
	}
	for cell, want := range map[string]string{"first": parts.String(), "second": "runs 2\n"} {
		if n.output[cell] != want || !slices.Equal(n.ended[cell], []string{"ok"}) {
			t.Errorf("cell %s shows %q with the replies %v, want %q", cell, n.output[cell], n.ended[cell], want)
		}
	}
}

func (n *notebook) connect(t *testing.T) {
	t.Helper()
	var err error
	if n.conn, _, err = websocket.Dial(t.Context(), n.url, nil); err != nil { //nolint:bodyclose // Dial has read it
		t.Fatal(err)
	}
	n.conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = n.conn.CloseNow() })
}

// run sends a cell.
func (n *notebook) run(t *testing.T, id, code string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"channel": "shell", "parent_header": map[string]any{}, "metadata": map[string]any{}, "buffers": []any{},
		"header":  map[string]any{"msg_id": id, "msg_type": "execute_request", "session": "s", "username": "u", "version": "5.4", "date": "2026-01-01T00:00:00Z"},
		"content": map[string]any{"code": code, "silent": false, "store_history": true, "user_expressions": map[string]any{}, "allow_stdin": false},
	})
	if err == nil {
		err = n.conn.Write(t.Context(), websocket.MessageText, text)
	}
	testbed.Must(t, err)
}

// read does what a notebook does with the next message.
func (n *notebook) read(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, text, err := n.conn.Read(ctx)
	if err != nil {
		return err
	}
	var m struct {
		Header struct {
			Type string `json:"msg_type"`
		} `json:"header"`
		Parent struct {
			ID string `json:"msg_id"`
		} `json:"parent_header"`
		Content struct{ Text, Status string } `json:"content"`
	}
	testbed.Must(t, json.Unmarshal(text, &m))
	switch m.Header.Type {
	case "stream":
		n.output[m.Parent.ID] += m.Content.Text
	case "clear_output":
		n.output[m.Parent.ID] = ""
	case "execute_reply":
		n.ended[m.Parent.ID] = append(n.ended[m.Parent.ID], m.Content.Status)
	}
	return nil
}
