package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// Run code in a fresh sandbox and wait for its result.
func Example() {
	farm := replay("POST /v1/run", `{"id": "job_1", "state": "running"}`,
		"GET /v1/jobs/job_1", `{"id": "job_1", "state": "completed", "result": {"exit_code": 0, "stdout": "42\n"}}`)
	defer farm.Close()
	ctx := context.Background()
	c, err := client.New(farm.URL, client.WithKey("sf_…"))
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.Run(ctx, wire.RunRequest{Code: "print(6 * 7)"}, client.WithWait(time.Minute))
	if err == nil && !job.Final() {
		job, err = c.Wait(ctx, job.ID)
	}
	if err == nil {
		err = client.Failure(job) // a failure of the farm; an exception of the code is in the result
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(job.Result.Execute.Stdout)
	// Output: 42
}

// Variables are kept between executions in one sandbox.
func ExampleClient_Execute() {
	farm := replay("POST /v1/sandboxes", `{"sandbox": {"id": "sbx_1"}, "job": {"id": "job_1", "state": "queued"}}`,
		"POST /v1/sandboxes/sbx_1/execute", `{"id": "job_2", "state": "queued"}`,
		"GET /v1/jobs/job_2", `{"id": "job_2", "state": "completed", "result": {"exit_code": 0}}`,
		"POST /v1/sandboxes/sbx_1/execute", `{"id": "job_3", "state": "queued"}`,
		"GET /v1/jobs/job_3", `{"id": "job_3", "state": "completed", "result": {"exit_code": 0, "results": [{"mime": "text/plain", "data": "42"}]}}`,
		"DELETE /v1/sandboxes/sbx_1", `{"id": "job_4", "state": "queued"}`)
	defer farm.Close()
	ctx := context.Background()
	c, err := client.New(farm.URL)
	if err != nil {
		log.Fatal(err)
	}
	made, err := c.CreateSandbox(ctx, wire.CreateRequest{TTLSeconds: new(600)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _, _ = c.Close(ctx, made.Sandbox.ID) }()
	for _, code := range []string{"x = 20", "x + 22"} {
		job, err := c.Execute(ctx, made.Sandbox.ID, wire.ExecuteRequest{Code: code})
		if err == nil {
			job, err = c.Wait(ctx, job.ID)
		}
		if err == nil {
			err = client.Failure(job)
		}
		if err != nil {
			log.Fatal(err)
		}
		for _, result := range job.Result.Execute.Results {
			fmt.Println(result.Data)
		}
	}
	// Output: 42
}

// Output appears while the code runs.
func ExampleClient_Events() {
	farm := replay("POST /v1/run", `{"id": "job_1", "state": "queued"}`,
		"GET /v1/jobs/job_1/events", "id: 1-0\nevent: stdout\ndata: {\"text\": \"0\\n1\\n\"}\n\nid: 1-1\nevent: stdout\ndata: {\"text\": \"2\\n\"}\n\n"+
			"id: 2-0\nevent: state\ndata: {\"state\": \"completed\"}\n\n")
	defer farm.Close()
	ctx := context.Background()
	c, err := client.New(farm.URL)
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.Run(ctx, wire.RunRequest{Code: "import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(1)"})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range c.Events(ctx, job.ID, "") {
		if err != nil {
			log.Fatal(err)
		}
		if event.Name == "stdout" {
			var data wire.TextData
			if err := json.Unmarshal(event.Data, &data); err != nil {
				log.Fatal(err)
			}
			fmt.Print(data.Text)
		}
	}
	// Output:
	// 0
	// 1
	// 2
}

// Every file that a job made can be downloaded.
func ExampleClient_Download() {
	farm := replay("GET /v1/artifacts", `{"items": [{"id": "art_1", "path": "plot.png", "size": 3}]}`,
		"GET /v1/artifacts/art_1", "/bucket/plot.png", "GET /bucket/plot.png", "png")
	defer farm.Close()
	ctx := context.Background()
	c, err := client.New(farm.URL)
	if err != nil {
		log.Fatal(err)
	}
	for artifact, err := range c.Artifacts(ctx, client.ArtifactFilter{JobID: "job_1"}) {
		if err != nil {
			log.Fatal(err)
		}
		content, err := c.Download(ctx, artifact)
		if err != nil {
			log.Fatal(err)
		}
		n, err := io.Copy(io.Discard, content)
		_ = content.Close()
		fmt.Println(artifact.Path, n, err)
	}
	// Output: plot.png 3 <nil>
}

// The address may end in /v1, as it is written in many settings.
func ExampleNew() {
	c, err := client.New("https://farm.example.com/v1/", client.WithKey("sf_…"))
	fmt.Println(c.URL(), err)
	_, err = client.New("farm.example.com")
	fmt.Println(err)
	// Output:
	// https://farm.example.com <nil>
	// parse the address of the farm: "farm.example.com" does not have the form http://host:port
}

// An error of the farm has a code, which a program should look at, and names each field of the request that is wrong.
func ExampleError() {
	farm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"status": 422, "code": "invalid", "detail": "The request is not valid.", "request_id": "req_1",
			"errors": [{"pointer": "/ttl_seconds", "detail": "ttl_seconds is -1; it must be from 5 to 604800"}]}`)
	}))
	defer farm.Close()
	c, err := client.New(farm.URL)
	if err != nil {
		panic(err)
	}
	_, err = c.CreateSandbox(context.Background(), wire.CreateRequest{TTLSeconds: new(-1)})
	fmt.Println(client.CodeOf(err))
	if e, ok := errors.AsType[*client.Error](err); ok {
		fmt.Println(e.Status, e.RequestID, e.Fields[0].Pointer)
	}
	// Output:
	// invalid
	// 422 req_1 /ttl_seconds
}

// Code that raises is a result, and no failure. A job that ran into its time limit is one.
func ExampleFailure() {
	fmt.Println(client.Failure(wire.Job{State: "completed"}))
	fmt.Println(client.Failure(wire.Job{State: "timed_out", Error: &wire.JobError{Code: "conflict", Message: "The code ran for 300 seconds."}}))
	// Output:
	// <nil>
	// The code ran for 300 seconds (conflict)
}

// Paths of [client.FS] are absolute; relative ones are in the workspace.
func ExampleAbsolute() {
	fmt.Println(client.Absolute("/etc/hosts"), client.Absolute("data/a.csv"))
	// Output:
	// /etc/hosts /workspace/data/a.csv
}

// Files of the workspace are streams in both directions.
func ExampleFiles() {
	farm := replay("PUT /v1/sandboxes/sbx_1/files/in/numbers.txt", `{"path": "in/numbers.txt", "size": 5}`,
		"GET /v1/sandboxes/sbx_1/files/in/numbers.txt", "1 2 3")
	defer farm.Close()
	ctx := context.Background()
	c, err := client.New(farm.URL)
	if err != nil {
		log.Fatal(err)
	}
	files := c.Files("sbx_1")
	if err := files.Write(ctx, "in/numbers.txt", strings.NewReader("1 2 3")); err != nil {
		log.Fatal(err)
	}
	content, err := files.Read(ctx, "in/numbers.txt", 0)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = content.Close() }()
	text, err := io.ReadAll(content)
	fmt.Println(string(text), err)
	// Output: 1 2 3 <nil>
}

// A process runs beside the jobs of a sandbox, also when its caller goes away.
func ExampleClient_StartProcess() {
	farm := replay("POST /v1/sandboxes/sbx_1/processes", `{"id": "prc_1", "state": "running"}`,
		"GET /v1/sandboxes/sbx_1/processes/prc_1/events", "id: 1\nevent: stderr\ndata: {\"text\": \"Serving HTTP on port 8080\"}\n\n"+
			"id: 2\nevent: exit\ndata: {\"exit_code\": 0}\n\n")
	defer farm.Close()
	ctx := context.Background()
	c, err := client.New(farm.URL)
	if err != nil {
		log.Fatal(err)
	}
	process, err := c.StartProcess(ctx, "sbx_1", wire.ProcessRequest{Command: new("python3 -m http.server 8080")})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range c.ProcessEvents(ctx, "sbx_1", process.ID, "") {
		if err != nil {
			log.Fatal(err)
		}
		var data wire.TextData
		if err := json.Unmarshal(event.Data, &data); err == nil {
			fmt.Println(event.Name, data.Text)
		}
	}
	// Output:
	// stderr Serving HTTP on port 8080
	// exit
}

// Packages are installed by a job; its result names those that could not be installed.
func ExampleClient_Install() {
	farm := replay("POST /v1/sandboxes/sbx_1/packages", `{"id": "job_1", "state": "running"}`,
		"GET /v1/jobs/job_1", `{"id": "job_1", "state": "completed", "result": {"packages": [{"name": "humanize", "status": "installed"}]}}`)
	defer farm.Close()
	ctx := context.Background()
	c, err := client.New(farm.URL)
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.Install(ctx, "sbx_1", wire.PackagesRequest{Packages: []string{"humanize"}}, client.WithWait(time.Minute))
	if err == nil && !job.Final() {
		job, err = c.Wait(ctx, job.ID)
	}
	if err == nil {
		err = client.Failure(job)
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, one := range job.Result.Install.Packages {
		fmt.Println(one.Name, one.Status, one.Message)
	}
	// Output: humanize installed
}

// Lists are iterators that fetch pages as they are needed.
func ExampleClient_Jobs() {
	farm := replay("GET /v1/jobs", `{"items": [{"id": "job_2", "kind": "run"}], "next_cursor": "c"}`,
		"GET /v1/jobs", `{"items": [{"id": "job_1", "kind": "execute"}]}`)
	defer farm.Close()
	ctx := context.Background()
	c, err := client.New(farm.URL)
	if err != nil {
		log.Fatal(err)
	}
	for job, err := range c.Jobs(ctx, client.JobFilter{State: "running"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(job.ID, job.Kind)
	}
	// Output:
	// job_2 run
	// job_1 execute
}
