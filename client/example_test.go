package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// Run code in a fresh sandbox and wait for its result.
func Example() {
	ctx := context.Background()
	c, err := client.New(os.Getenv("SANDFARM_URL"), client.WithKey(os.Getenv("SANDFARM_API_KEY")))
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
}

// Variables are kept between executions in one sandbox.
func ExampleClient_Execute() {
	ctx := context.Background()
	c, err := client.New("http://127.0.0.1:8000")
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
}

// Output appears while the code runs.
func ExampleClient_Events() {
	ctx := context.Background()
	c, err := client.New("http://127.0.0.1:8000")
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
}

// Every file that a job made can be downloaded.
func ExampleClient_Download() {
	ctx := context.Background()
	c, err := client.New("http://127.0.0.1:8000")
	if err != nil {
		log.Fatal(err)
	}
	for artifact, err := range c.Artifacts(ctx, client.ArtifactFilter{JobID: "job_…"}) {
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
}
