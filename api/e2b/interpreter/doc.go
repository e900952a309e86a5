// Package interpreter is E2B's code interpreter, which its SDKs expect at port 49999 of a sandbox: code that is executed with its output as a stream
// of lines, and the contexts in which it runs.
//
// An execution is a job of the sandbox, in line with its other jobs, and the stream is made of the job's events. A context is a context of the
// sandbox; its id is its language and its name, so there is no table. As with E2B, code is stopped when its caller disconnects: no other caller can get
// what it prints. Unlike E2B's, the code runs on when this process stops; its job has the result.
package interpreter
