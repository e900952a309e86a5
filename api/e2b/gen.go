//go:build ignore

// Command gen makes the Go code of the .proto files in envd. It has dependencies of its own (envd/gen.mod): only who changes those files needs
// the compiler.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// files are the .proto files, relative to the folder envd, where the generated code goes, too.
var files = []string{"process.proto", "filesystem.proto"}

// plugins are the programs of this module that write code, with their parameters: all of it is one package.
var plugins = []struct{ program, parameter string }{
	{"google.golang.org/protobuf/cmd/protoc-gen-go", "paths=source_relative"},
	{"connectrpc.com/connect/cmd/protoc-gen-connect-go", "paths=source_relative,package_suffix"},
}

func main() {
	if err := generate(context.Background(), "envd"); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func generate(ctx context.Context, dir string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files}
	seen := map[string]bool{}
	for _, f := range compiled {
		request.ProtoFile = appendFile(request.ProtoFile, seen, f)
	}
	for _, plugin := range plugins {
		request.Parameter = proto.String(plugin.parameter)
		in, err := proto.Marshal(request)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		run := exec.CommandContext(ctx, "go", "run", "-modfile=envd/gen.mod", plugin.program)
		run.Stdin, run.Stderr = bytes.NewReader(in), os.Stderr
		raw, err := run.Output()
		if err != nil {
			return fmt.Errorf("run %s: %w", plugin.program, err)
		}
		var answer pluginpb.CodeGeneratorResponse
		if err := proto.Unmarshal(raw, &answer); err != nil {
			return fmt.Errorf("decode the answer of %s: %w", plugin.program, err)
		}
		if answer.Error != nil {
			return fmt.Errorf("%s: %s", plugin.program, answer.GetError())
		}
		for _, f := range answer.GetFile() {
			if err := os.WriteFile(filepath.Join(dir, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendFile appends a file after those that it imports, each once.
func appendFile(to []*descriptorpb.FileDescriptorProto, seen map[string]bool, f protoreflect.FileDescriptor) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return to
	}
	seen[f.Path()] = true
	for i := range f.Imports().Len() {
		to = appendFile(to, seen, f.Imports().Get(i).FileDescriptor)
	}
	return append(to, protoutil.ProtoFromFileDescriptor(f))
}
