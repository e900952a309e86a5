// Package webhook notifies callers that a job has finished: a signed POST by the Standard Webhooks scheme
// (https://www.standardwebhooks.com, version 1.0.0), to public addresses only unless the operator allows others.
package webhook
