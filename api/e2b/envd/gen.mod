// What gen.go needs, for go run -modfile.
module github.com/sandfarm/sandfarm

go 1.25.0

require (
	github.com/bufbuild/protocompile v0.14.1
	google.golang.org/protobuf v1.36.12
)

require (
	connectrpc.com/connect v1.20.0 // indirect
	golang.org/x/sync v0.8.0 // indirect
)
