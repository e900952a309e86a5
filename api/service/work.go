package service

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// runSpare is how many seconds a one-shot sandbox may live beyond its run: waiting for a worker counts.
const runSpare = 3600

// pythonLanguage is the language when none is named.
const pythonLanguage = "python"

// Execute runs code in a sandbox.
func (s *Service) Execute(ctx context.Context, c Call, sandboxID string, r wire.ExecuteRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	request := &farm.ExecuteRequest{
		Code: r.Code, Language: orElse(r.Language, pythonLanguage), Context: orElse(r.Context, "default"),
		Env: r.Env, AutoInstall: r.AutoInstall,
	}
	job := s.record(c, farm.KindExecute, sandboxID)
	job.CallbackURL = r.CallbackURL
	if job.TimeoutSeconds, err = s.timeout(r.TimeoutSeconds); err != nil {
		return Outcome{}, err
	}
	for _, check := range []func() error{
		func() error { return s.checkCode(r.Code) },
		func() error { return checkContext(request.Context) },
		func() error { return s.checkEnv(r.Env) },
		func() error { return s.checkCallback(ctx, r.CallbackURL) },
		func() error { return s.checkSandboxLanguage(ctx, c.Tenant, sandboxID, request.Language) },
	} {
		if err := check(); err != nil {
			return Outcome{}, err
		}
	}
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Execute: request}, Idempotency: idem})
}

// checkSandboxLanguage checks a language against the sandbox's image. The usual language, which every image has, costs
// no look at the record.
func (s *Service) checkSandboxLanguage(ctx context.Context, tenant, id, lang string) error {
	if !farm.ValidID(farm.SandboxPrefix, id) {
		return noSandbox(id)
	}
	if s.speaks(ctx, lang) {
		return nil
	}
	box, err := s.sandbox(ctx, tenant, id)
	if err != nil {
		return err
	}
	return s.checkLanguage(ctx, lang, box.Spec.Image)
}

// Command runs shell commands in a sandbox.
func (s *Service) Command(ctx context.Context, c Call, sandboxID string, r wire.CommandRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	request := &farm.CommandRequest{Cwd: r.Cwd, Env: r.Env, ContinueOnError: r.ContinueOnError, Background: r.Background, AutoInstall: r.AutoInstall}
	if request.Commands, err = s.commands(r); err != nil {
		return Outcome{}, err
	}
	if len(r.Cwd) > farm.MaxPathBytes || strings.ContainsRune(r.Cwd, 0) {
		return Outcome{}, farm.Invalidf("cwd is no path")
	}
	if err := s.checkEnv(r.Env); err != nil {
		return Outcome{}, err
	}
	if err := s.checkCallback(ctx, r.CallbackURL); err != nil {
		return Outcome{}, err
	}
	if !farm.ValidID(farm.SandboxPrefix, sandboxID) {
		return Outcome{}, noSandbox(sandboxID)
	}
	job := s.record(c, farm.KindCommand, sandboxID)
	job.CallbackURL = r.CallbackURL
	if r.Background && r.TimeoutSeconds == nil {
		job.TimeoutSeconds = s.limits.TimeoutMaxSeconds // a server in the background is to live as long as it may
	} else if job.TimeoutSeconds, err = s.timeout(r.TimeoutSeconds); err != nil {
		return Outcome{}, err
	}
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Command: request}, Idempotency: idem})
}

func (s *Service) commands(r wire.CommandRequest) ([]string, error) {
	list := r.Commands
	switch {
	case r.Command != nil && r.Commands != nil:
		return nil, farm.Invalidf("give command or commands, not both")
	case r.Command != nil:
		list = []string{*r.Command}
	case len(list) == 0:
		return nil, farm.Invalidf("give command, or commands with at least one in it")
	case len(list) > s.limits.MaxCommands:
		return nil, farm.Invalidf("there are %d commands; at most %d are allowed", len(list), s.limits.MaxCommands)
	}
	size := int64(0)
	for i, command := range list {
		field := "command"
		if r.Command == nil {
			field = fmt.Sprintf("commands[%d]", i)
		}
		switch {
		case command == "":
			return nil, farm.Invalidf("%s is empty", field)
		case strings.ContainsRune(command, 0):
			return nil, farm.Invalidf("%s holds a NUL byte", field)
		}
		size += int64(len(command))
	}
	if size > s.limits.MaxCodeBytes {
		return nil, farm.Errorf(farm.CodeTooLarge, "the commands have %d bytes; at most %d are allowed", size, s.limits.MaxCodeBytes)
	}
	return list, nil
}

// Run runs code in a fresh sandbox that is closed afterwards.
func (s *Service) Run(ctx context.Context, c Call, r wire.RunRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	if err := s.checkCode(r.Code); err != nil {
		return Outcome{}, err
	}
	timeout, err := s.timeout(r.TimeoutSeconds)
	if err != nil {
		return Outcome{}, err
	}
	spec, err := s.spec(ctx, wire.CreateRequest{
		Image: r.Image, GPU: r.GPU, Resources: r.Resources, Network: r.Network, Env: r.Env, Labels: r.Labels, CallbackURL: r.CallbackURL,
	})
	if err != nil {
		return Outcome{}, err
	}
	install, names, err := s.wanted(r.Packages)
	if err != nil {
		return Outcome{}, err
	}
	execute := &farm.ExecuteRequest{Code: r.Code, Language: orElse(r.Language, pythonLanguage), Context: "default", AutoInstall: r.AutoInstall}
	if err := s.checkLanguage(ctx, execute.Language, spec.Image); err != nil {
		return Outcome{}, err
	}
	spec.TTLSeconds, spec.IdleSeconds = max(s.limits.TTLDefaultSeconds, timeout+runSpare), 0
	files, err := s.inputs(r.Files)
	if err != nil {
		return Outcome{}, err
	}
	box := s.newSandbox(c.Tenant, spec)
	box.OneShot = true
	job := s.record(c, farm.KindRun, box.ID)
	job.Queue, job.TimeoutSeconds, job.CallbackURL = spec.GPU.Queue(), timeout, r.CallbackURL
	staged := s.stage(c.Tenant, job.ID)
	for i := range files {
		if err := staged.spill(ctx, &files[i]); err != nil {
			staged.drop(ctx)
			return Outcome{}, err
		}
	}
	return staged.submit(ctx, c, store.Accept{
		Job: job, Request: &farm.Request{Sandbox: &spec, Execute: execute, Install: install, Files: files},
		Sandbox: box, Packages: names, Idempotency: idem,
	})
}

// inputs checks the files of a run.
func (s *Service) inputs(given []wire.InputFile) ([]farm.InputFile, error) {
	files := make([]farm.InputFile, 0, len(given))
	seen := make(map[string]bool, len(given))
	total := int64(0)
	for i, f := range given {
		path, err := farm.CleanFilePath(f.Path)
		if err != nil {
			return nil, farm.Invalidf("files[%d]: %s", i, farm.MessageOf(err))
		}
		var content []byte
		switch {
		case (f.Content == nil) == (f.ContentBase64 == nil):
			return nil, farm.Invalidf("files[%d]: give content or content_base64, one of the two", i)
		case f.Content != nil:
			content = []byte(*f.Content)
		default:
			if content, err = base64.StdEncoding.DecodeString(*f.ContentBase64); err != nil {
				return nil, farm.Invalidf("files[%d].content_base64 is not base64", i)
			}
		}
		if seen[path] {
			return nil, farm.Invalidf("files[%d]: the path %q is given twice", i, short(path))
		}
		seen[path] = true
		if total += int64(len(content)); total > s.limits.MaxInputBytes {
			return nil, farm.Errorf(farm.CodeTooLarge, "the files have more than %d bytes together: upload them into a sandbox instead", s.limits.MaxInputBytes)
		}
		files = append(files, farm.InputFile{Path: path, Content: bytes.Clone(content), Size: int64(len(content))})
	}
	return files, nil
}

// Control interrupts what runs in a sandbox (farm.KindInterrupt) or starts its kernels anew (farm.KindRestart).
func (s *Service) Control(ctx context.Context, c Call, kind farm.JobKind, sandboxID string, r wire.ControlRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	if r.Context != "" {
		if err := checkContext(r.Context); err != nil {
			return Outcome{}, err
		}
	}
	if err := s.checkCallback(ctx, r.CallbackURL); err != nil {
		return Outcome{}, err
	}
	if !farm.ValidID(farm.SandboxPrefix, sandboxID) {
		return Outcome{}, noSandbox(sandboxID)
	}
	job := s.record(c, kind, sandboxID)
	job.Inline, job.CallbackURL = true, r.CallbackURL
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Context: r.Context}, Idempotency: idem})
}
