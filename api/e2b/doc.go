// Package e2b serves the sandboxes of the farm to the official SDKs of E2B, which need no change but their two addresses:
// E2B_API_URL and E2B_SANDBOX_URL are both the farm's address with /e2b behind it.
//
// It translates, and does nothing itself: a sandbox is a sandbox of the farm, a process one of its processes, a file one of its files, by the
// same service (api/service) as /v1, with the same limits, quotas and audit.
//
// Two kinds of requests arrive. Those to the control API (create, list, kill, …) carry an API key and go through the guards of /v1. Those to the
// data plane (envd at port 49983 of a sandbox, the code interpreter at port 49999) carry no key: they name the sandbox in the header
// E2b-Sandbox-Id and the port in E2b-Sandbox-Port, and prove by a token of that sandbox that they may (X-Access-Token, or, for the code
// interpreter, E2B-Traffic-Access-Token). A token names its tenant and its sandbox and is signed by the farm, so that no table is needed; Door.Open
// checks it. It works as long as its sandbox.
//
// To serve more of the data plane, write a Handler: it gets the request with its body unread, and the Box that it is for. By then the token was
// checked, the sandbox is known to run, and the request counts against the quotas of its tenant. Box.Tenant and Box.ID are what the methods of
// service.Service take. BoxRoutes (routes.go) names the handlers; that of the code interpreter is interpreter.serve, which gets
// /e2b/execute, /e2b/contexts and what is below it, and /e2b/health for the port 49999. An error that a handler returns is answered in E2B's
// form, {"code": …, "message": …}; a handler may also answer with an error itself.
package e2b
