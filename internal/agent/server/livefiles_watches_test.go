package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// nextChanges reads changes until one matches.
func nextChanges(t *testing.T, l client.Live, id string, after uint64, until func(agent.FileEvent) bool) (seen []agent.FileEvent, lost bool) {
	t.Helper()
	for {
		got, err := l.Watched(t.Context(), id, after, time.Minute)
		testbed.Must(t, err)
		lost = lost || got.Lost
		for _, e := range got.Events {
			after = e.Seq
			seen = append(seen, e)
			if until(e) {
				return seen, lost
			}
		}
	}
}

func named(kind agent.FileKind, path string) func(agent.FileEvent) bool {
	return func(e agent.FileEvent) bool { return e.Kind == kind && e.Path == path }
}

func TestWatchTellsOfChanges(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	testbed.Must(t, os.Mkdir(at("old"), 0o700))
	started, err := l.Watch(t.Context(), "w", dir, true, false, []string{"*.tmp", ".git"})
	testbed.Must(t, err)
	testbed.Check(t, started.Directories == 2, "%+v", started)
	last := uint64(0)
	wait := func(kind agent.FileKind, name string) agent.FileEvent {
		t.Helper()
		seen, lost := nextChanges(t, l, "w", last, named(kind, at(name)))
		e := seen[len(seen)-1]
		if last = e.Seq; lost {
			t.Error("events were lost")
		}
		for _, e := range seen {
			if strings.HasSuffix(e.Path, ".tmp") || strings.Contains(e.Path, ".part") || strings.Contains(e.Path, ".git") {
				t.Errorf("told of %+v", e)
			}
		}
		return e
	}
	testbed.Must(t, os.WriteFile(at("x.tmp"), nil, 0o600))
	testbed.Must(t, os.Mkdir(at(".git"), 0o700))
	testbed.Must(t, os.WriteFile(at("old/f"), []byte("1"), 0o600))
	wait(agent.FileCreated, "old/f")
	wait(agent.FileChanged, "old/f")
	testbed.Must(t, os.MkdirAll(at("new/deep/er"), 0o700))
	e := wait(agent.FileCreated, "new/deep/er")
	testbed.Check(t, e.Type == "dir", "%+v", e)
	testbed.Must(t, os.WriteFile(at("new/deep/er/f"), nil, 0o600))
	wait(agent.FileCreated, "new/deep/er/f")
	testbed.Must(t, os.Rename(at("new"), at("newer")))
	e = wait(agent.FileRenamed, "newer")
	testbed.Check(t, e.From == at("new") && e.Type == "dir", "%+v", e)
	testbed.Must(t, os.WriteFile(at("newer/deep/er/f"), []byte("2"), 0o600)) // its directory is known by its new name
	e = wait(agent.FileChanged, "newer/deep/er/f")
	testbed.Check(t, !e.Metadata, "of the content: %+v", e)
	testbed.Must(t, os.Chmod(at("newer/deep/er/f"), 0o640))
	changes := func(e agent.FileEvent) bool { return e.Path == at("newer/deep/er/f") && e.Metadata }
	seen, _ := nextChanges(t, l, "w", last, changes)
	last = seen[len(seen)-1].Seq
	testbed.Must(t, os.Rename(at("newer/deep/er/f"), filepath.Join(t.TempDir(), "out")))
	wait(agent.FileRemoved, "newer/deep/er/f")
	_, err = l.FSWrite(t.Context(), at("whole"), replacing, strings.NewReader("x"))
	testbed.Must(t, err)
	wait(agent.FileCreated, "whole")
	testbed.Must(t, os.Remove(at("whole")))
	wait(agent.FileRemoved, "whole")
	testbed.Must(t, l.EndWatch(t.Context(), "w"))
	_, err = l.Watched(t.Context(), "w", last, 0)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "after its end: %v", err)
}

// A directory that is renamed before the kernel watches it is watched, too: its first name is gone when it is looked for.
func TestWatchOfADirectoryThatIsRenamedAtOnce(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	_, err := l.Watch(t.Context(), "w", dir, true, false, nil)
	testbed.Must(t, err)
	pid, err := strconv.Atoi(strings.Fields(readFS(t, l, "/proc/self/stat"))[0])
	testbed.Must(t, err)
	testbed.Must(t, syscall.Kill(pid, syscall.SIGSTOP))
	testbed.Until(t, "all threads that watch have stopped", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		testbed.Must(t, err)
		for _, task := range tasks {
			stat, err := os.ReadFile(task)
			if _, state, _ := strings.Cut(string(stat), ") "); err != nil || !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return len(tasks) > 0
	})
	testbed.Must(t, os.MkdirAll(at("first/sub"), 0o700))
	testbed.Must(t, os.Rename(at("first"), at("second")))
	testbed.Must(t, syscall.Kill(pid, syscall.SIGCONT))
	seen, _ := nextChanges(t, l, "w", 0, named(agent.FileCreated, at("second/sub")))
	last := seen[len(seen)-1].Seq
	testbed.Must(t, os.WriteFile(at("second/sub/f"), nil, 0o600))
	nextChanges(t, l, "w", last, named(agent.FileCreated, at("second/sub/f")))
}

// Events beyond the window are dropped, and the reader is told.
func TestWatchSaysWhatItDropped(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	_, err := l.Watch(t.Context(), "w", dir, false, false, nil)
	testbed.Must(t, err)
	for n := range files.WindowEvents + 1 {
		testbed.Must(t, os.Mkdir(filepath.Join(dir, fmt.Sprint(n)), 0o700))
	}
	end := filepath.Join(dir, "end")
	testbed.Must(t, os.Mkdir(end, 0o700))
	for lost := false; !lost; { // the kernel has told the first, and they have left the window
		got, err := l.Watched(t.Context(), "w", 0, time.Second)
		testbed.Must(t, err)
		lost = got.Lost
	}
	seen, lost := nextChanges(t, l, "w", 0, named(agent.FileCreated, end))
	testbed.Check(t, lost && len(seen) < files.WindowEvents && seen[0].Seq != 1, "from the first on: %d events, lost %v", len(seen), lost)
}

// A new file that is written in place gets its mode after it is made, as E2B's envd gives it its owner: watchers of both see the same.
func TestWatchOfAFileThatIsWrittenInPlace(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	_, err := l.Watch(t.Context(), "w", dir, false, false, nil)
	testbed.Must(t, err)
	file := filepath.Join(dir, "new")
	_, err = l.FSWrite(t.Context(), file, farm.FSWrite{How: farm.FSOverwrite, Mode: -1}, strings.NewReader("x"))
	testbed.Must(t, err)
	seen, _ := nextChanges(t, l, "w", 0, func(e agent.FileEvent) bool { return e.Kind == agent.FileChanged && !e.Metadata })
	want := []agent.FileEvent{
		{Seq: 1, Kind: agent.FileCreated, Path: file, Type: "file"},
		{Seq: 2, Kind: agent.FileChanged, Path: file, Type: "file", Metadata: true},
		{Seq: 3, Kind: agent.FileChanged, Path: file, Type: "file"},
	}
	testbed.Check(t, slices.Equal(seen, want), "%+v", seen)
}

// A polled watch tells each change once, however seldom it is asked.
func TestAPolledWatch(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	_, err := l.Watch(t.Context(), "w", dir, false, true, nil)
	testbed.Must(t, err)
	names := []string{"one", "two", "three"}
	var seen []string
	for _, name := range names {
		testbed.Must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		testbed.Until(t, "the watch sees "+name, func() bool {
			got, err := l.Polled(t.Context(), "w")
			testbed.Must(t, err)
			for _, e := range got.Events {
				seen = append(seen, filepath.Base(e.Path))
			}
			return len(got.Events) > 0
		})
	}
	got, err := l.Polled(t.Context(), "w")
	testbed.Check(t, err == nil && len(got.Events) == 0 && slices.Equal(seen, names), "%v, then %+v, %v", seen, got, err)
	_, err = l.Watched(t.Context(), "w", 0, time.Minute)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "read by a number: %v", err)
	testbed.Must(t, l.EndWatch(t.Context(), "w"))
	_, err = l.Polled(t.Context(), "w")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "after its end: %v", err)
}

// One watch more than there may be takes the place of one that nobody reads.
func TestWatchesAreBounded(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	for n := range files.MaxWatches {
		_, err := l.Watch(t.Context(), fmt.Sprint(n), dir, false, false, nil)
		testbed.Must(t, err)
	}
	if _, err := l.Watched(t.Context(), "0", 0, 0); err != nil { // now it is the one that was read last
		t.Fatal(err)
	}
	_, err := l.Watch(t.Context(), "more", dir, false, false, nil)
	testbed.Must(t, err)
	if _, err := l.Watched(t.Context(), "0", 0, 0); err != nil {
		t.Errorf("the one that was read: %v", err)
	}
	_, err = l.Watched(t.Context(), "1", 0, 0)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "the one that was left longest: %v", err)
	for _, pattern := range []string{"[", strings.Repeat("n", farm.MaxNameBytes+1)} {
		_, err := l.Watch(t.Context(), "p", dir, false, false, []string{pattern})
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "pattern %.9q: %v", pattern, err)
	}
	for n, code := range map[int]farm.Code{farm.MaxIgnored - 1: "", farm.MaxIgnored: "", farm.MaxIgnored + 1: farm.CodeInvalid} {
		_, err := l.Watch(t.Context(), fmt.Sprint("ignore", n), dir, false, false, make([]string, n))
		if code == "" && err != nil || code != "" && farm.CodeOf(err) != code {
			t.Errorf("%d patterns: %v", n, err)
		}
	}
}

func TestListingAnywhereInPages(t *testing.T) {
	t.Parallel()
	l, dir := agenttest.StartWithFiles(t).Live(), t.TempDir()
	want := []string{}
	for _, name := range []string{"a", "a/b", "a/b/c", "a-b", "a-b/x", "z"} { // a-b is after a in a walk, and before a/b as a text
		testbed.Must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		want = append(want, name)
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		var got []string
		for after := ""; ; {
			page, err := l.FSList(t.Context(), dir, farm.MaxFSDepth, limit, after)
			testbed.Must(t, err)
			for _, e := range page.Entries {
				got, after = append(got, strings.TrimPrefix(e.Path, dir+"/")), e.Path
			}
			if !page.More {
				break
			}
		}
		testbed.Check(t, strings.Join(got, " ") == strings.Join(want, " "), "pages of %d: %v", limit, got)
	}
}

// A page of files with much metadata is shorter, so that it is within what the farm takes.
func TestListingOfMuchMetadata(t *testing.T) {
	t.Parallel()
	const files = 200
	dir, err := os.MkdirTemp("/dev/shm", "metadata")
	testbed.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, full := agenttest.StartWithFiles(t).Live(), map[string]string{}
	for n := range farm.MaxMetadata {
		full[strconv.Itoa(n)] = "v"
	}
	for n := range files {
		_, err := l.FSWrite(t.Context(), filepath.Join(dir, fmt.Sprintf("%03d", n)), farm.FSWrite{How: farm.FSOverwrite, Mode: -1, Metadata: full}, strings.NewReader("x"))
		testbed.Must(t, err)
	}
	found, after := 0, ""
	for more := true; more; {
		page, err := l.FSList(t.Context(), dir, 1, files, after)
		testbed.Must(t, err)
		for _, e := range page.Entries {
			testbed.Require(t, len(e.Metadata) == farm.MaxMetadata, "%s has %d pairs", e.Path, len(e.Metadata))
		}
		found += len(page.Entries)
		after, more = page.Entries[len(page.Entries)-1].Path, page.More
	}
	testbed.Diff(t, "files are listed", files, found)
}
