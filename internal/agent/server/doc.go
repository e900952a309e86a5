// Package server is the agent: PID 1 of a sandbox. It owns the kernels, the commands, the files of the workspace and the log of every
// execution, and serves them over HTTP on yamux sessions. It promises that an id is run once, that frames are kept until they are
// acknowledged, and that a stopped execution leaves nothing running that it can find. It does not isolate: it runs as the user's
// own uid, and the sandbox around it is the wall.
package server
