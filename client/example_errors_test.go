package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

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
