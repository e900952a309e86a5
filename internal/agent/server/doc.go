// Package server is the agent, PID 1 of a sandbox. It serves executions, files and packages over HTTP on yamux sessions, and
// combines the packages that do the work: process, kernel, install, files and egress. It runs each execution id once in the
// life of the sandbox, keeps frames until they are acknowledged or the execution is forgotten, and its outcome after that, and kills
// every process of a stopped execution that it can find. It does not isolate anything: it runs with the uid of user code, and the sandbox
// around it is the isolation.
package server
