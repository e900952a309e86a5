package service

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// runSpare is how many seconds a one-shot sandbox may live longer than its run. The wait for a worker counts.
const runSpare = 3600

// pythonLanguage is the default language.
const pythonLanguage = "python"

// Execute runs code in a sandbox. If the wait fails, the outcome beside the error has the job that was accepted; its ID is empty otherwise.
func (s *Service) Execute(ctx context.Context, c Call, sandboxID string, r wire.ExecuteRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	request := &farm.ExecuteRequest{
		Code: r.Code, Language: orElse(r.Language, pythonLanguage), Context: orElse(r.Context, "default"),
		Env: r.Env, AutoInstall: r.AutoInstall, Cell: c.Cell, Data: c.Data,
	}
	job := s.record(c, farm.KindExecute, sandboxID)
	p := c.problems()
	request.StopAtOutputLimit, request.Filename = stopsAtOutputLimit(p, r.OnOutputLimit), filename(p, r.Filename, request.Language)
	job.TimeoutSeconds, job.CallbackURL = s.timeout(p, r.TimeoutSeconds), r.CallbackURL
	p.check("/code", s.checkCode(r.Code))
	p.check("/context", checkContext(request.Context))
	s.checkEnv(p, r.Env)
	p.check("/callback_url", s.checkCallback(ctx, r.CallbackURL))
	p.check("/language", s.checkSandboxLanguage(ctx, c.Tenant, sandboxID, request.Language))
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Execute: request}, Idempotency: idem})
}

// The values of on_output_limit.
const (
	continueAtOutputLimit = "continue"
	stopAtOutputLimit     = "stop"
)

// stopsAtOutputLimit reads on_output_limit.
func stopsAtOutputLimit(p *problems, given *string) bool {
	value := orElse(given, continueAtOutputLimit)
	if value != continueAtOutputLimit && value != stopAtOutputLimit {
		p.addf("/on_output_limit", "on_output_limit %q is neither %q nor %q", farm.Shorten(value), continueAtOutputLimit, stopAtOutputLimit)
	}
	return value == stopAtOutputLimit
}

// onOutputLimit is the value of on_output_limit of an accepted request.
func onOutputLimit(stops bool) string {
	if stops {
		return stopAtOutputLimit
	}
	return continueAtOutputLimit
}

// filename cleans the name of the file that code is from; "" is no name.
func filename(p *problems, given, language string) string {
	if given == "" {
		return ""
	}
	clean, err := farm.CleanFilePath(given)
	p.check("/filename", err)
	if language != pythonLanguage {
		p.addf("/filename", "filename is for the language %q only", pythonLanguage)
	}
	return clean
}

// checkSandboxLanguage checks a language against the sandbox's image. It does not read the record for a language that
// every image has.
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
	p := c.problems()
	request := &farm.CommandRequest{
		Commands: s.commands(p, r), Cwd: r.Cwd, Env: r.Env, ContinueOnError: r.ContinueOnError, Background: r.Background, AutoInstall: r.AutoInstall,
	}
	request.StopAtOutputLimit = stopsAtOutputLimit(p, r.OnOutputLimit)
	if len(r.Cwd) > farm.MaxPathBytes || strings.ContainsRune(r.Cwd, 0) {
		p.addf("/cwd", "cwd is not a path")
	}
	s.checkEnv(p, r.Env)
	timeout := s.timeout(p, r.TimeoutSeconds)
	if r.Background && r.TimeoutSeconds == nil {
		timeout = s.limits.TimeoutMaxSeconds // a server in the background may run for the longest timeout
	}
	p.check("/callback_url", s.checkCallback(ctx, r.CallbackURL))
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	if !farm.ValidID(farm.SandboxPrefix, sandboxID) {
		return Outcome{}, noSandbox(sandboxID)
	}
	job := s.record(c, farm.KindCommand, sandboxID)
	job.TimeoutSeconds, job.CallbackURL = timeout, r.CallbackURL
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Command: request}, Idempotency: idem})
}

func (s *Service) commands(p *problems, r wire.CommandRequest) []string {
	list := r.Commands
	switch {
	case r.Command != nil && r.Commands != nil:
		p.addf("", "give command or commands, not both")
	case r.Command != nil:
		list = []string{*r.Command}
	case len(list) == 0:
		p.addf("", "give command, or commands with at least one in it")
	case len(list) > s.limits.MaxCommands:
		p.addf("/commands", "there are %d commands; at most %d are allowed", len(list), s.limits.MaxCommands)
	}
	size := int64(0)
	for i, command := range list {
		pointer, field := "/command", "command"
		if r.Command == nil {
			pointer, field = strict.Pointer("/commands", strconv.Itoa(i)), fmt.Sprintf("commands[%d]", i)
		}
		switch {
		case command == "":
			p.addf(pointer, "%s is empty", field)
		case strings.ContainsRune(command, 0):
			p.addf(pointer, "%s holds a NUL byte", field)
		}
		size += int64(len(command))
	}
	if size > s.limits.MaxCodeBytes {
		p.check("", farm.Errorf(farm.CodeTooLarge, "the commands have %d bytes; at most %d are allowed", size, s.limits.MaxCodeBytes))
	}
	return list
}

// Run runs code in a fresh sandbox that is closed afterwards.
func (s *Service) Run(ctx context.Context, c Call, r wire.RunRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	p := c.problems()
	p.check("/code", s.checkCode(r.Code))
	timeout := s.timeout(p, r.TimeoutSeconds)
	spec, secrets := s.spec(ctx, p, c.Tenant, wire.CreateRequest{
		Image: r.Image, Runtime: r.Runtime, GPU: r.GPU, Resources: r.Resources, Network: r.Network, AllowHosts: r.AllowHosts, Secrets: r.Secrets, Env: r.Env, Labels: r.Labels, CallbackURL: r.CallbackURL,
	})
	install, names := s.wanted(p, r.Packages)
	execute := &farm.ExecuteRequest{Code: r.Code, Language: orElse(r.Language, pythonLanguage), Context: "default", AutoInstall: r.AutoInstall}
	execute.StopAtOutputLimit, execute.Filename = stopsAtOutputLimit(p, r.OnOutputLimit), filename(p, r.Filename, execute.Language)
	if !p.of("/image") {
		p.check("/language", s.checkLanguage(ctx, execute.Language, spec.Image))
	}
	spec.TTLSeconds, spec.IdleSeconds = max(s.limits.TTLDefaultSeconds, timeout+runSpare), 0
	files := s.inputs(p, r.Files)
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	box := s.newSandbox(c.Tenant, spec)
	box.OneShot = true
	sealed, err := s.seal(box, secrets)
	if err != nil {
		return Outcome{}, err
	}
	job := s.record(c, farm.KindRun, box.ID)
	job.Queue, job.TimeoutSeconds, job.CallbackURL = spec.GPU.Queue(), timeout, r.CallbackURL
	staged := s.stage(job, spec.Resources.DiskMB)
	for i := range files {
		if err := staged.moveToBlobStore(ctx, &files[i]); err != nil {
			staged.drop(ctx)
			return Outcome{}, err
		}
	}
	return staged.submit(ctx, c, store.Accept{
		Job: job, Request: &farm.Request{Sandbox: &spec, Execute: execute, Install: install, Files: files},
		Sandbox: box, Secrets: sealed, Packages: names, Idempotency: idem,
	})
}

// inputs checks the files of a run.
func (s *Service) inputs(p *problems, given []wire.InputFile) []farm.InputFile {
	files := make([]farm.InputFile, 0, len(given))
	seen := make(map[string]bool, len(given))
	total := int64(0)
	for i, f := range given {
		pointer := strict.Pointer("/files", strconv.Itoa(i))
		path, err := farm.CleanFilePath(f.Path)
		switch {
		case err != nil:
			p.addf(pointer+"/path", "files[%d]: %s", i, farm.MessageOf(err))
		case seen[path]:
			p.addf(pointer+"/path", "files[%d]: the path %q is given twice", i, farm.Shorten(path))
		}
		seen[path] = true
		var content []byte
		switch {
		case (f.Content == nil) == (f.ContentBase64 == nil):
			p.addf(pointer, "files[%d]: give content or content_base64, one of the two", i)
		case f.Content != nil:
			content = []byte(*f.Content)
		default:
			if content, err = base64.StdEncoding.DecodeString(*f.ContentBase64); err != nil {
				p.addf(pointer+"/content_base64", "files[%d].content_base64 is not base64", i)
			}
		}
		if total += int64(len(content)); total > s.limits.MaxInputBytes {
			p.check("/files", farm.Errorf(farm.CodeTooLarge, "the files have more than %d bytes together: upload them into a sandbox instead", s.limits.MaxInputBytes))
			return nil
		}
		files = append(files, farm.InputFile{Path: path, Content: content, Size: int64(len(content))})
	}
	return files
}

// Control interrupts the running code of a sandbox (farm.KindInterrupt) or restarts its kernels (farm.KindRestart).
func (s *Service) Control(ctx context.Context, c Call, kind farm.JobKind, sandboxID string, r wire.ControlRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	p := c.problems()
	if r.Context != "" {
		p.check("/context", checkContext(r.Context))
	}
	p.check("/callback_url", s.checkCallback(ctx, r.CallbackURL))
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	if !farm.ValidID(farm.SandboxPrefix, sandboxID) {
		return Outcome{}, noSandbox(sandboxID)
	}
	job := s.record(c, kind, sandboxID)
	job.Inline, job.CallbackURL = true, r.CallbackURL
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Context: r.Context}, Idempotency: idem})
}
