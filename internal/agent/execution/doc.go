// Package execution holds one execution of the agent: what it runs, how it is stopped, and the log of its frames. The packages
// that run code, commands and installs take an Execution; package server keeps the executions by id and serves their logs.
package execution
