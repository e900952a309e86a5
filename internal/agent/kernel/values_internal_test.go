package kernel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestNamesOfValuesAreBounded(t *testing.T) {
	t.Parallel()
	for length, kept := range map[int]bool{agent.MaxDisplayID - 1: true, agent.MaxDisplayID: true, agent.MaxDisplayID + 1: false} {
		var v values
		id := strings.Repeat("n", length)
		first, name := v.number(id, false)
		second, _ := v.number(id, true)
		if first != 1 || (name == id) != kept || (name == "") == kept || (second == 1) != kept {
			t.Errorf("a name of %d bytes: number %d with name %q, then number %d", length, first, name, second)
		}
	}
}

// The newest names are remembered, so that an animation that makes a name for each picture can always update the last one.
func TestTheNewestNamesOfValuesAreRemembered(t *testing.T) {
	t.Parallel()
	for _, count := range []int{maxNamedValues - 1, maxNamedValues, maxNamedValues + 1, 3 * maxNamedValues} {
		var v values
		for i := range count {
			v.number(strconv.Itoa(i), false)
		}
		n, _ := v.number(strconv.Itoa(count-1), true)
		testbed.Check(t, n == count, "of %d values, the newest has number %d", count, n)
		oldest := max(0, count-maxNamedValues)
		n, _ = v.number(strconv.Itoa(oldest), true)
		testbed.Check(t, n == oldest+1, "of %d values, the oldest that is remembered has number %d, want %d", count, n, oldest+1)
		if len(v.named) > maxNamedValues || len(v.names) > maxNamedValues {
			t.Errorf("of %d values, %d names are remembered", count, len(v.named))
		}
		if count > maxNamedValues {
			n, _ := v.number("0", true)
			testbed.Check(t, n == count+1, "of %d values, the first still has number %d", count, n)
		}
	}
}

// A name that is used again belongs to the newer value.
func TestANameBelongsToTheNewestValue(t *testing.T) {
	t.Parallel()
	var v values
	for range 2 * maxNamedValues {
		v.number("same", false)
	}
	n, _ := v.number("same", true)
	testbed.Check(t, n == 2*maxNamedValues && len(v.names) == 1, "the update has number %d, and %d names are remembered", n, len(v.names))
}

func TestReopenPipeAcceptsOnlyPipes(t *testing.T) {
	t.Parallel()
	var ends [2]int
	testbed.Must(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
	own, err := reopenPipe(ends[0])
	testbed.Must(t, err)
	// The sender's flags must not affect the reader: the sender blocks, the reader does not.
	flags, err := unix.FcntlInt(uintptr(own), unix.F_GETFL, 0)
	testbed.Check(t, err == nil && flags&unix.O_NONBLOCK != 0, "flags %o, %v", flags, err)
	flags, err = unix.FcntlInt(uintptr(ends[0]), unix.F_GETFL, 0)
	testbed.Check(t, err == nil && flags&unix.O_NONBLOCK == 0, "the sender's flags %o, %v", flags, err)
	for _, fd := range []int{own, ends[0], ends[1]} {
		_ = unix.Close(fd)
	}
	for _, path := range []string{"/dev/zero", "/dev/null", t.TempDir(), "/proc/self/exe"} {
		f, err := os.Open(path)
		testbed.Must(t, err)
		_, err = reopenPipe(int(f.Fd()))
		testbed.Check(t, errors.Is(err, errNoPipes), "%s was accepted: %v", path, err)
		_ = f.Close()
	}
}

// User code can send anything on the kernel's control socket: each message is read within its bounds, and what is none ends the reading.
func FuzzControl(f *testing.F) {
	message := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...) //nolint:gosec // short
	}
	for _, seed := range [][]byte{
		nil,
		{0},
		{0xff, 0xff, 0xff, 0xff},
		message(""), message("{}"), message(`{"op":"ready"}`), message(`{"op":"begin","id":"job_1"}`),
		message(`{"op":"display","id":"x","number":1,"data":{"text/plain":"x"},"metadata":{},"display_id":"n","update":true}`),
		message(`{"op":"display","data":7}`), message(`{"op":"clear","wait":true}`), message(`{"op":"reply","content":{"id":"x","exit":-1,"traceback":["\ud800"]}}`),
		append(message(`{"op":"comm","content":[[[[]]]]}`), message(`null`)...), message(`{"op":"ready"}`)[:7],
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, peer, err := newControl()
		testbed.Must(t, err)
		defer c.close()
		go func() {
			for sent := 0; sent < len(in); {
				n, err := unix.Write(peer, in[sent:])
				if err != nil {
					break
				}
				sent += n
			}
			_ = unix.Close(peer)
		}()
		_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		for read := 0; ; {
			m, err := c.read()
			if err != nil {
				testbed.Require(t, cap(c.data) <= maxControlBytes+1<<20, "%d bytes are kept", cap(c.data))
				return
			}
			if read++; read > len(in)/4 {
				t.Fatalf("%d messages in %d bytes", read, len(in))
			}
			var r reply
			if m.Op == "reply" && json.Unmarshal(m.Content, &r) == nil {
				_ = r.outcome()
			}
			testbed.Require(t, len(c.fds) <= maxControlFDs, "%d descriptors are kept", len(c.fds))
		}
	})
}

// A kernel that does not start says what is full, and nothing where nothing is.
func TestWhatIsFull(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	const help = ". Delete files there, or create a sandbox with more "
	for want, s := range map[string]struct {
		places []place
		limit  int64
	}{
		"": {[]place{{path: "/workspace", used: 384 * mib}, {path: "/tmp"}}, 512 * mib}, // a kernel just fits
		"files take 384 of the sandbox's 511 MiB of memory (/workspace 384 MiB)" + help + "memory_mb":                                                                                     {[]place{{path: "/workspace", used: 384 * mib}, {path: "/tmp", used: 1}}, 511 * mib},
		"nothing more fits into /workspace" + help + "disk_mb":                                                                                                                            {[]place{{path: "/workspace", used: mib, full: true}}, 0},
		"nothing more fits into /workspace, /tmp, and files take 120 of the sandbox's 128 MiB of memory (/workspace 100 MiB, /home 10 MiB, /tmp 10 MiB)" + help + "disk_mb and memory_mb": {[]place{{"/workspace", 100 * mib, true}, {"/home", 10 * mib, false}, {"/tmp", 10 * mib, true}}, 128 * mib},
	} {
		testbed.Diff(t, fmt.Sprintf("%+v", s), want, sentence(s.places, s.limit))
	}
}

func TestKernelThatIsNotStartedSaysWhatHelps(t *testing.T) {
	t.Parallel()
	limit := "The kernel could not be started: " + process.OutOfProcesses
	ended := errors.New("the Python kernel ended while it started")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no process": {fmt.Errorf("start kernel: %w", syscall.EAGAIN), limit},
		"no thread":  {errors.New("the Python kernel ended while it started: RuntimeError: can't start new thread"), limit},
		"other":      {because(ended, "", false), "The kernel could not be started: the Python kernel ended while it started."},
		"refused":    {because(ended, "", true), limit},
		"full":       {because(ended, "nothing fits", false), "The kernel could not be started: nothing fits (the Python kernel ended while it started)."},
		"both":       {because(ended, "nothing fits", true), limit},
	} {
		testbed.Diff(t, name, c.want, notStarted("The kernel", c.err))
	}
}

// A message of a comm to a kernel that ran code for minutes was asked again every half minute, and each copy reached the kernel in the end.
func TestAMessageOfACommReachesABusyKernelOnce(t *testing.T) {
	t.Parallel()
	c, peer, err := newControl()
	testbed.Must(t, err)
	defer c.close()
	file := os.NewFile(uintptr(peer), "peer") //nolint:gosec // a descriptor is small
	conn, err := net.FileConn(file)
	testbed.Must(t, err)
	testbed.Must(t, file.Close())
	theirs := &control{conn: conn.(*net.UnixConn)}
	defer theirs.close()
	k := &kernel{proc: &process.Process{}, control: c, questions: map[uint64]*posed{}}
	ask := func(kind Kind, message string) (json.RawMessage, error) {
		return k.ask(string(kind), map[string]any{}, message, 0)
	}
	read := func() controlMessage {
		t.Helper()
		m, err := theirs.read()
		testbed.Must(t, err)
		return m
	}
	for range 3 {
		_, err := ask(CommMsg, "m1")
		testbed.Check(t, errors.Is(err, errNoAnswer), "asked a busy kernel: %v", err)
	}
	first := read()
	_, err = ask(CommMsg, "m2")
	testbed.Check(t, errors.Is(err, errNoAnswer), "asked a busy kernel: %v", err)
	second := read()
	testbed.Check(t, first.Number == 1 && second.Number == 2, "the kernel was asked %+v and %+v", first, second)
	k.deliverAnswer(first.Number, json.RawMessage(`"one"`))
	raw, err := ask(CommMsg, "m1")
	testbed.Check(t, err == nil && string(raw) == `"one"`, "asked when it has answered: %s, %v", raw, err)

	_, err = ask(Complete, "m2")
	testbed.Check(t, errors.Is(err, errNoAnswer), "asked a busy kernel: %v", err)
	third := read()
	k.deliverAnswer(third.Number, json.RawMessage(`{}`)) // nobody asks for it again
	testbed.Check(t, len(k.questions) == 1, "%d questions are kept, want m2", len(k.questions))
}

// A kernel that reads nothing has a number of questions, which are answered in time with nothing.
func TestQuestionsOfAKernelAreBounded(t *testing.T) {
	t.Parallel()
	c, peer, err := newControl()
	testbed.Must(t, err)
	defer c.close()
	defer func() { _ = unix.Close(peer) }()
	k := &kernel{proc: &process.Process{}, control: c, questions: map[uint64]*posed{}}
	large := strings.Repeat("x", 1<<20)
	for n := 1; n <= maxPosed+1; n++ {
		_, err := k.ask(string(CommMsg), large, strconv.Itoa(n), 0)
		testbed.Check(t, errors.Is(err, errNoAnswer), "question %d: %v", n, err)
		if want := min(n, maxPosed); len(k.questions) != want {
			t.Fatalf("after %d questions there are %d, want %d", n, len(k.questions), want)
		}
	}
	k.deliverAnswer(1, json.RawMessage(`{}`)) // makes room
	_, err = k.ask(string(CommMsg), large, "more", 0)
	testbed.Check(t, errors.Is(err, errNoAnswer) && k.questions[1] == nil && len(k.questions) == maxPosed, "one more: %v, %d questions", err, len(k.questions))
}

// A cell that sends messages one by one had the farm ask for each of them.
func TestAnswersWithMessagesHavePausesBetweenThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const count = 1000
		var l messages
		begun := time.Now()
		go func() {
			for range count {
				l.add(agent.Message{})
				time.Sleep(time.Millisecond)
			}
		}()
		got, answers := uint64(0), 0
		for ; got < count; answers++ {
			list := l.after(t.Context(), got, time.Minute)
			testbed.Require(t, len(list) > 0 && list[0].Seq == got+1, "after %d: %d messages", got, len(list))
			got = list[len(list)-1].Seq
			testbed.Check(t, answers > 0 || time.Since(begun) == 0, "the first answer came after %s", time.Since(begun))
		}
		most := int(count*time.Millisecond/answerPause) + 1
		testbed.Check(t, answers <= most, "%d answers in %s, want %d at most", answers, time.Since(begun), most)
	})
}
