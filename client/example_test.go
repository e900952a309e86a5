package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
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
