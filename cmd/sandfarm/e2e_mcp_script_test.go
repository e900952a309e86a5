//go:build integration

package main_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The script of this file checks that the tools behave the same over every Farm: the one inside the server and the one behind the REST
// API. Its transcript has no ids, times and links, so that two transcripts can be compared.

// toolAnswer is the answer to a call.
type toolAnswer struct {
	Call       string
	IsError    bool
	Structured string   // as JSON
	Blocks     []string // the content, each with its kind
}

// toolStep is one call of the script. Ids are written as $sandbox and $job.
type toolStep struct {
	name, tool string
	args       map[string]any
	wrong      bool              // an error is expected
	want       string            // that the text or the structured content contains
	keep       map[string]string // ids for later, and the fields that have them
	loose      bool              // the wording may differ
}

// plotCode shows a figure and saves a file.
const plotCode = "import matplotlib.pyplot as plt\nfrom pathlib import Path\nPath('out').mkdir(exist_ok=True)\nPath('out/a.csv').write_text('x,y\\n1,2\\n')\nplt.plot([1, 2])\nplt.show()\nprint('plotted')"

// toolScript is the script. It needs a farm whose images have Python with matplotlib, and that can reach a package index.
func toolScript() []toolStep {
	in := func(args map[string]any) map[string]any {
		args["sandbox_id"] = "$sandbox"
		return args
	}
	missing := "sbx_" + strings.Repeat("0", 26)
	return []toolStep{
		{name: "Create", tool: "create_sandbox", args: map[string]any{"name": "farmtest", "ttl_seconds": 600}, want: "$sandbox", keep: map[string]string{"sandbox": "sandbox_id"}},
		{name: "Print", tool: "execute_python_code", args: in(map[string]any{"code": "x = 20\nprint('hello', x)\nx + 22"}), want: "hello 20"},
		{name: "VariablesStay", tool: "execute_python_code", args: in(map[string]any{"code": "print(x + 1)"}), want: "21"},
		{name: "Raise", tool: "execute_python_code", args: in(map[string]any{"code": "raise ValueError('no')"}), want: "ValueError"},
		{name: "Plot", tool: "execute_python_code", args: in(map[string]any{"code": plotCode}), want: "plotted"},
		{name: "TimeOut", tool: "execute_python_code", args: in(map[string]any{"code": "while True: pass", "timeout_seconds": 1}), want: "timed_out"},
		{name: "Handle", tool: "execute_python_code", args: in(map[string]any{"code": "import time; time.sleep(2); print('late')", "wait_seconds": 0}), want: "get_job_result", keep: map[string]string{"job": "job_id"}},
		{name: "Fetch", tool: "get_job_result", args: map[string]any{"job_id": "$job", "wait_seconds": 45}, want: "late"},
		{name: "Endless", tool: "execute_python_code", args: in(map[string]any{"code": "import time; time.sleep(600)", "wait_seconds": 0}), want: "get_job_result", keep: map[string]string{"job": "job_id"}},
		{name: "Cancel", tool: "cancel_job", args: map[string]any{"job_id": "$job", "wait_seconds": 30}, want: `"state":"canceled"`},
		{name: "CancelAgain", tool: "cancel_job", args: map[string]any{"job_id": "$job"}, want: `"state":"canceled"`},
		{name: "RestartKernel", tool: "restart_kernel", args: in(map[string]any{"context": "default"}), want: "variables are gone"},
		{name: "VariablesAreGone", tool: "execute_python_code", args: in(map[string]any{"code": "print('x' in globals()); x = 20"}), want: "False"},
		{name: "Command", tool: "execute_terminal_command", args: in(map[string]any{"command": "cat out/a.csv; exit 3"}), want: "1,2"},
		{name: "Upload", tool: "upload_file_to_sandbox", args: in(map[string]any{"dest_path": "data/b.txt", "content": "größer\n"}), want: "data/b.txt"},
		{name: "UploadBytes", tool: "upload_file_to_sandbox", args: in(map[string]any{"dest_path": "data/c.bin", "content_base64": "AP8="}), want: "data/c.bin"},
		{name: "UploadOutside", tool: "upload_file_to_sandbox", args: in(map[string]any{"dest_path": "../b.txt", "content": "x"}), wrong: true},
		{name: "List", tool: "list_files", args: in(map[string]any{"path": "data"}), want: "b.txt"},
		{name: "ListMissing", tool: "list_files", args: in(map[string]any{"path": "nowhere"}), wrong: true},
		{name: "Download", tool: "download_file", args: in(map[string]any{"file_path": "data/b.txt"}), want: "größer"},
		{name: "DownloadBytes", tool: "download_file", args: in(map[string]any{"file_path": "/workspace/data/c.bin"}), want: "c.bin"},
		{name: "DownloadMissing", tool: "download_file", args: in(map[string]any{"file_path": "nowhere.txt"}), wrong: true},
		{name: "DownloadDirectory", tool: "download_file", args: in(map[string]any{"file_path": "data"}), wrong: true, loose: true},
		{name: "DownloadOutside", tool: "download_file", args: in(map[string]any{"file_path": "/etc/passwd"}), wrong: true},
		{name: "PackageOfTheImage", tool: "check_package_status", args: in(map[string]any{"package_name": "NumPy"}), want: "installed"},
		{name: "PackageThatIsNotThere", tool: "check_package_status", args: in(map[string]any{"package_name": "there-is-none"}), want: "not_found"},
		{name: "Install", tool: "install_packages_in_sandbox", args: in(map[string]any{"package_names": []string{"six==1.17.0", "there-is-none-such"}}), want: `"job_id"`},
		{name: "InstallWaitedFor", tool: "check_package_status", args: in(map[string]any{"package_name": "six", "wait_seconds": 45}), want: `"version":"1.17.0"`},
		{name: "InstallThatFailed", tool: "check_package_status", args: in(map[string]any{"package_name": "There_is.none-such", "wait_seconds": 45}), want: `"failed"`},
		{name: "ImportInTheRunningKernel", tool: "execute_python_code", args: in(map[string]any{"code": "import six; print(six.__version__, x)"}), want: "1.17.0 20"},
		{name: "PackageWithABadName", tool: "install_packages_in_sandbox", args: in(map[string]any{"package_names": []string{"--index-url=x"}}), wrong: true},
		{name: "NoCode", tool: "execute_python_code", args: in(map[string]any{}), wrong: true, want: "code"},
		{name: "UnknownSandbox", tool: "execute_python_code", args: map[string]any{"sandbox_id": missing, "code": "1"}, wrong: true},
		{name: "UnknownJob", tool: "get_job_result", args: map[string]any{"job_id": "job_" + strings.Repeat("0", 26)}, wrong: true},
		{name: "UnknownImage", tool: "create_sandbox", args: map[string]any{"image": "nothing"}, wrong: true},
		{name: "Start", tool: "start_process", args: in(map[string]any{"command": "echo up; exec sleep 1000"}), want: "running", keep: map[string]string{"process": "process_id"}},
		{name: "ReadOutput", tool: "read_process", args: in(map[string]any{"process_id": "$process", "wait_seconds": 45}), want: "up"},
		{name: "ReadNothing", tool: "read_process", args: in(map[string]any{"process_id": "$process", "cursor": "x"}), wrong: true},
		{name: "Link", tool: "get_port_url", args: in(map[string]any{"port": 8000}), want: "url"},
		{name: "LinkToNoPort", tool: "get_port_url", args: in(map[string]any{"port": 65536}), wrong: true},
		{name: "Stop", tool: "stop_process", args: in(map[string]any{"process_id": "$process"}), want: "exit code"},
		{name: "StopAgain", tool: "stop_process", args: in(map[string]any{"process_id": "$process"}), want: "exit code"}, // and forget
		{name: "StopForgotten", tool: "stop_process", args: in(map[string]any{"process_id": "$process"}), wrong: true},
		{name: "Close", tool: "close_sandbox", args: in(map[string]any{}), want: "$sandbox"},
		{name: "WorkAfterTheEnd", tool: "execute_python_code", args: in(map[string]any{"code": "1"}), wrong: true},
	}
}

// playScript plays the script and returns its answers. It fails the test if a call does not do what it must do over every Farm.
func playScript(u *mcpUser) []toolAnswer {
	t := u.t
	t.Helper()
	ids := map[string]string{}
	var steps []toolAnswer
	for _, s := range toolScript() {
		result := u.ask(s.tool, withIDs(s.args, ids))
		structured, err := json.Marshal(result.StructuredContent)
		testbed.Must(t, err)
		var fields map[string]any
		_ = json.Unmarshal(structured, &fields)
		for name, field := range s.keep {
			ids[name], _ = fields[field].(string)
			if ids[name] == "" {
				t.Fatalf("%s: there is no %s in %s %s", s.name, field, structured, textOf(result))
			}
		}
		want := s.want
		for name, id := range ids {
			want = strings.ReplaceAll(want, "$"+name, id)
		}
		if result.IsError != s.wrong || !strings.Contains(textOf(result)+string(structured), want) {
			t.Errorf("%s: isError is %t, want %t and %q in:\n%s%s", s.name, result.IsError, s.wrong, want, textOf(result), structured)
		}
		if s.wrong && result.StructuredContent != nil {
			t.Errorf("%s: an error has structured content: %s", s.name, structured)
		}
		one := toolAnswer{Call: s.name, IsError: result.IsError, Structured: plainText(string(structured))}
		if !s.loose {
			one.Blocks = blocksOf(result)
		}
		steps = append(steps, one)
	}
	return steps
}

// withIDs puts ids into arguments.
func withIDs(args map[string]any, ids map[string]string) map[string]any {
	out := make(map[string]any, len(args))
	for name, value := range args {
		if s, ok := value.(string); ok && strings.HasPrefix(s, "$") {
			value = ids[strings.TrimPrefix(s, "$")]
		}
		out[name] = value
	}
	return out
}

// blocksOf describes each block of the content. An image is described by its type only: two runs of one plot need not produce
// the same bytes.
func blocksOf(r *mcp.CallToolResult) []string {
	var all []string
	for _, c := range r.Content {
		switch c := c.(type) {
		case mcp.TextContent:
			all = append(all, "text "+plainText(c.Text))
		case mcp.ImageContent:
			all = append(all, "image "+c.MIMEType)
		case mcp.ResourceLink:
			all = append(all, fmt.Sprintf("link %s %s %s", plainText(c.URI), c.Name, c.MIMEType))
		default:
			all = append(all, fmt.Sprintf("%T", c))
		}
	}
	return all
}

// plainText replaces the parts that differ between runs.
func plainText(s string) string {
	for _, r := range []struct{ form, to string }{
		{`https?://[^\s"')>]+`, "<url>"},
		{`\b(sbx|job|art|req|prc)_[0-9a-z]{20,}`, "<$1>"},
		{` \(position \d+ in the queue of its sandbox\)`, ""}, // until a worker has it
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "<time>"},
		{`("(queue|run|upload|duration)_ms":)[0-9.]+`, "$1 0"},
		{`\b[0-9.]+ ?(ms|s|seconds)\b`, "<span>"},
		{`"sha256":"[0-9a-f]{64}"`, `"sha256":"<sum>"`},
		{`"size":\d+`, `"size":0`},
		{`\b[0-9.,]+ (bytes|B|[kKM]i?B)\b`, "<size>"},
	} {
		s = regexp.MustCompile(r.form).ReplaceAllString(s, r.to)
	}
	return s
}
