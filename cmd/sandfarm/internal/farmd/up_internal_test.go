package farmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The configuration to paste must be valid for clients.
func TestWelcomeShowsTheConfigurationOfMCP(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{false, true} {
		var out bytes.Buffer
		newConsole(&out).welcome("bin/sandfarm", "", "127.0.0.1:8000", keys)
		_, rest, found := strings.Cut(out.String(), `{"mcpServers"`)
		line, _, _ := strings.Cut(`{"mcpServers"`+rest, "\n")
		var config struct {
			MCPServers map[string]struct {
				Type, URL string
				Headers   map[string]string
			}
		}
		if err := json.Unmarshal([]byte(line), &config); err != nil || !found {
			t.Fatalf("keys %v: %v in %q", keys, err, line)
		}
		server := config.MCPServers["sandfarm"]
		if server.Type != "http" || server.URL != "http://127.0.0.1:8000/mcp" || (server.Headers["Authorization"] != "") != keys {
			t.Errorf("keys %v: %+v", keys, server)
		}
	}
}

// A client cannot connect to "all addresses".
func TestWelcomeNamesAnAddressToConnectTo(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{"[::]:8000": "http://127.0.0.1:8000/v1\n", "0.0.0.0:81": "http://127.0.0.1:81/v1\n", "10.1.2.3:8000": "http://10.1.2.3:8000/v1\n", "[::1]:8000": "http://[::1]:8000/v1\n"} {
		var out bytes.Buffer
		newConsole(&out).welcome("sandfarm", "", addr, true)
		if text := out.String(); !strings.Contains(text, want) || !strings.Contains(text, `-H "Authorization: Bearer $SANDFARM_API_KEY"`) {
			t.Errorf("%s: no %q, or no key, in %s", addr, want, text)
		}
	}
}

// Another terminal finds the farm's folder only if it is told.
func TestWelcomeNamesTheFolderOfLocalCommands(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{"": "  API keys    sandfarm key create --local", "/srv/it's": `  API keys    SANDFARM_DATA='/srv/it'\''s' sandfarm key create --local`} {
		var out bytes.Buffer
		newConsole(&out).welcome("sandfarm", data, "127.0.0.1:8000", false)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q: no %q in %s", data, want, &out)
		}
	}
}

// A folder that a file of settings names counts as one that a variable names.
func TestOtherFolderIsNotTheUsualOne(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	testbed.Must(t, err)
	for data, want := range map[string]string{".sandfarm": "", here + "/.sandfarm": "", "/srv/farm": "/srv/farm", "data": here + "/data"} {
		testbed.Diff(t, data, want, otherFolder(data))
	}
}

// A data directory without a farm would have secrets that verify nothing.
func TestUpWithATakenPortNamesItsSettingAndMakesNothing(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer func() { _ = taken.Close() }()
	s := defaultSettings()
	s.Data, s.API.Listen, s.S3.Listen, s.Metrics.Listen = filepath.Join(t.TempDir(), "data"), taken.Addr().String(), taken.Addr().String(), "127.0.0.1:0"
	err = Up(t.Context(), s, "test", io.Discard)
	want := ""
	for i, name := range []string{"api.listen (SANDFARM_API_LISTEN)", "s3.listen (SANDFARM_S3_LISTEN)"} {
		want += strings.Repeat("\n", i) + "another program listens on " + taken.Addr().String() + ": stop it, or set " + name + " to another address"
	}
	testbed.Diff(t, "error", want, fmt.Sprint(err))
	if _, err := os.Stat(s.Data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("data directory: %v", err)
	}
	d, err := openData(s)
	testbed.Must(t, err)
	defer func() { _ = d.Close() }()
	if err := checkPorts(t.Context(), s); err != nil {
		t.Errorf("with a farm on the data directory: %v", err)
	}
}

func TestProgressShowsStepsWithTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out testbed.Log
		c := newConsole(&out)
		stop := c.watch()
		report := func(after time.Duration, message string, done, total float64) {
			time.Sleep(after)
			c.printProgress(farm.Progress{Message: message, Done: done, Total: total})
		}
		report(0, "Asking the registry for python", 0, 0)
		report(3*time.Second, "Step 1/2 : FROM base", 0, 2)
		report(0, "Step 2/2 : RUN pip install numpy", 1, 2)
		report(time.Second, "Collecting numpy", 1, 2) // too soon after the last line
		report(3*time.Second, "Downloading numpy", 1, 2)
		report(time.Second, "Downloading numpy", 1, 2)
		time.Sleep(34 * time.Second)
		report(27*time.Second, "Step 3/2 : "+strings.Repeat("x", 200), 2, 2)
		stop()
		time.Sleep(time.Minute)
		want := `  [ 0:00] Asking the registry for python
  [ 0:03] step 1 of 2: FROM base
  [ 0:03] step 2 of 2: RUN pip install numpy
  [ 0:07]   Downloading numpy
  [ 0:20] still working on step 2 of 2
  [ 0:30] still working on step 2 of 2
  [ 0:40] still working on step 2 of 2
  [ 0:50] still working on step 2 of 2
  [ 1:00] still working on step 2 of 2
  [ 1:09] step 3 of 2: ` + strings.Repeat("x", 107) + `…
`
		testbed.Diff(t, "", want, out.String())
	})
}

func TestConsoleIsSilentWithoutABuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out testbed.Log
		stop := newConsole(&out).watch()
		time.Sleep(time.Minute)
		stop()
		testbed.Diff(t, "printed", "", out.String())
	})
}

func TestThreads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now, cores int
		setting    string
		want       int
	}{
		"TwoCores":         {2, 2, "", 4},
		"ManyCores":        {64, 64, "", 66},
		"ByTheEnvironment": {2, 2, "2", 2},
		"LimitOfTheCgroup": {2, 8, "", 2},
	} {
		testbed.Diff(t, fmt.Sprintf("%s: threads", name), c.want, threads(c.now, c.cores, c.setting))
	}
}

// kernelHasSlices reports whether this kernel lets a thread of the usual policy have a slice of its own: Linux 6.12 and newer.
func kernelHasSlices(t *testing.T) bool {
	t.Helper()
	own, err := unix.SchedGetAttr(0, 0)
	testbed.Must(t, err)
	return own.Runtime != 0
}

// Every thread of the process and every process that it starts has the slice. An older kernel takes it and shows none.
func TestSlicesAreShort(t *testing.T) {
	t.Parallel()
	var want uint64
	if kernelHasSlices(t) {
		want = slice
	}
	shortenSlices()
	child := exec.Command("sleep", "60")
	testbed.Must(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	ids := []int{child.Process.Pid}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		testbed.Must(t, err)
		ids = append(ids, id)
	}
	for _, id := range ids {
		attr, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) { // the thread has ended
			continue
		}
		if err != nil || attr.Runtime != want || attr.Policy != unix.SCHED_NORMAL {
			t.Errorf("thread %d: %+v, %v; want a slice of %d ns", id, attr, err, want)
		}
	}
}
