package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

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
