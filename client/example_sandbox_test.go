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
	ctx := context.Background()
	c, err := client.New("http://127.0.0.1:8000")
	if err != nil {
		log.Fatal(err)
	}
	files := c.Files("sbx_…")
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
}

// A process runs beside the jobs of a sandbox, also when its caller goes away.
func ExampleClient_StartProcess() {
	ctx := context.Background()
	c, err := client.New("http://127.0.0.1:8000")
	if err != nil {
		log.Fatal(err)
	}
	process, err := c.StartProcess(ctx, "sbx_…", wire.ProcessRequest{Command: new("python3 -m http.server 8080")})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range c.ProcessEvents(ctx, "sbx_…", process.ID, "") {
		if err != nil {
			log.Fatal(err)
		}
		var data wire.TextData
		if err := json.Unmarshal(event.Data, &data); err == nil {
			fmt.Println(event.Name, data.Text)
		}
	}
}

// Packages are installed by a job; its result names those that could not be installed.
func ExampleClient_Install() {
	ctx := context.Background()
	c, err := client.New("http://127.0.0.1:8000")
	if err != nil {
		log.Fatal(err)
	}
	job, err := c.Install(ctx, "sbx_…", wire.PackagesRequest{Packages: []string{"humanize"}}, client.WithWait(time.Minute))
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
}

// Lists are iterators that fetch pages as they are needed.
func ExampleClient_Jobs() {
	ctx := context.Background()
	c, err := client.New("http://127.0.0.1:8000")
	if err != nil {
		log.Fatal(err)
	}
	for job, err := range c.Jobs(ctx, client.JobFilter{State: "running"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(job.ID, job.Kind, job.CreatedAt)
	}
}
