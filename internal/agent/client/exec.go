package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxExecutions bounds the executions that an agent may list, and executionValues the JSON values of each.
const maxExecutions, executionValues = 8192, 8

// Info returns the agent's version, languages, kernels and memory.
func (c *Client) Info(ctx context.Context) (agent.Info, error) {
	var info agent.Info
	err := c.call(ctx, callTimeout, http.MethodGet, "/v1/info", nil, nil, &info)
	return info, err
}

// Start starts an execution. Starting an id again changes nothing and returns no error.
func (c *Client) Start(ctx context.Context, id string, spec agent.Spec) error {
	return c.call(ctx, callTimeout, http.MethodPut, executionPath(id), nil, spec, nil)
}

// Ack lets the agent drop frames up to and including seq; a full log then accepts output again.
func (c *Client) Ack(ctx context.Context, id string, seq uint64) error {
	query := url.Values{"seq": {strconv.FormatUint(seq, 10)}}
	return c.call(ctx, callTimeout, http.MethodPost, executionPath(id)+"/ack", query, nil, nil)
}

// Stop interrupts an execution and kills it after its grace period. It has no effect on one that has ended.
func (c *Client) Stop(ctx context.Context, id string, reason agent.StopReason) error {
	query := url.Values{"reason": {string(reason)}}
	return c.call(ctx, callTimeout, http.MethodPost, executionPath(id)+"/stop", query, nil, nil)
}

// Forget drops the frames of an execution; its outcome stays. A running one is killed. An unknown id is no error, and can no longer be
// started.
func (c *Client) Forget(ctx context.Context, id string) error {
	return c.call(ctx, callTimeout, http.MethodDelete, executionPath(id), nil, nil, nil)
}

// ForgetAll forgets several executions in one call. An agent that is too old for it returns an error.
func (c *Client) ForgetAll(ctx context.Context, ids ...string) error {
	return c.call(ctx, callTimeout, http.MethodDelete, "/v1/executions", url.Values{"id": ids}, nil, nil)
}

// Executions lists the executions that run or have frames.
func (c *Client) Executions(ctx context.Context) ([]agent.Execution, error) {
	return c.executions(ctx, nil)
}

// Execution describes an execution, also one that only the outcome is left of; nil if it was never started.
func (c *Client) Execution(ctx context.Context, id string) (*agent.Execution, error) {
	list, err := c.executions(ctx, url.Values{"id": {id}})
	for i := range list { // an agent that is older than the query lists all
		if list[i].ID == id {
			return &list[i], err
		}
	}
	return nil, err
}

func (c *Client) executions(ctx context.Context, query url.Values) ([]agent.Execution, error) {
	var found []agent.Execution
	err := c.callFor(ctx, callTimeout, http.MethodGet, "/v1/executions", query, nil, list(&found, maxExecutions, executionValues))
	if err == nil && len(found) > maxExecutions {
		return nil, farm.Errorf(farm.CodeInternal, "the agent listed %d executions", len(found))
	}
	return found, err
}

// Interrupt interrupts the running executions of a context as Stop with StopInterrupt does; "" means all contexts.
func (c *Client) Interrupt(ctx context.Context, kernel string) error {
	return c.call(ctx, callTimeout, http.MethodPost, "/v1/interrupt", url.Values{"context": {kernel}}, nil, nil)
}

// RestartKernel kills the kernel of a context and starts a new one; "" means all. It returns when the new one is ready.
func (c *Client) RestartKernel(ctx context.Context, kernel string) error {
	if kernel == "" {
		kernel = "*"
	}
	return c.call(ctx, kernelTimeout, http.MethodPost, "/v1/kernels/"+url.PathEscape(kernel)+"/restart", nil, nil, nil)
}

// StartKernel starts the kernel of a context in advance. It returns when the kernel is ready.
func (c *Client) StartKernel(ctx context.Context, kernel, language string) error {
	query := url.Values{"language": {language}}
	return c.call(ctx, kernelTimeout, http.MethodPost, "/v1/kernels/"+url.PathEscape(kernel)+"/start", query, nil, nil)
}

// WarmKernel imports modules in the running, idle Python kernel of a context, without changing the names and history of its
// code. It returns the modules that are loaded then. Modules missing from the image are left out; for other kernels it returns none.
func (c *Client) WarmKernel(ctx context.Context, kernel string, modules ...string) ([]string, error) {
	var loaded []string
	query := url.Values{"module": modules}
	err := c.call(ctx, kernelTimeout, http.MethodPost, "/v1/kernels/"+url.PathEscape(kernel)+"/warm", query, nil, &loaded)
	return loaded, err
}

func executionPath(id string) string { return "/v1/executions/" + url.PathEscape(id) }
