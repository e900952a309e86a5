package service

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
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
	p.check("/language", s.checkSandboxLanguage(ctx, c.Tenant, sandboxID, request.Language))
	s.checkCallback(ctx, p, r.CallbackURL)
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
	s.checkCallback(ctx, p, r.CallbackURL)
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
	files := s.inputs(p, r.Files) // before what waits: many of them take long
	spec, secrets := s.spec(ctx, p, c.Tenant, wire.CreateRequest{
		Image: r.Image, Runtime: r.Runtime, GPU: r.GPU, Resources: r.Resources, Network: r.Network, AllowHosts: r.AllowHosts, Secrets: r.Secrets, Env: r.Env, Labels: r.Labels,
	})
	install, names := s.wanted(p, r.Packages)
	execute := &farm.ExecuteRequest{Code: r.Code, Language: orElse(r.Language, pythonLanguage), Context: "default", AutoInstall: r.AutoInstall}
	execute.StopAtOutputLimit, execute.Filename = stopsAtOutputLimit(p, r.OnOutputLimit), filename(p, r.Filename, execute.Language)
	if !p.of("/image") {
		p.check("/language", s.checkLanguage(ctx, execute.Language, spec.Image))
	}
	spec.TTLSeconds, spec.IdleSeconds = max(s.limits.TTLDefaultSeconds, timeout+runSpare), 0
	s.checkCallback(ctx, p, r.CallbackURL)
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
	total, paths := int64(0), 0
	for i, f := range given {
		pointer := strict.Pointer("/files", strconv.Itoa(i))
		path, err := farm.CleanFilePath(f.Path)
		switch {
		case err != nil:
			p.addf(pointer+"/path", "files[%d]: %s", i, farm.MessageOf(err))
		case seen[path]:
			p.addf(pointer+"/path", "files[%d]: the path %q is given twice", i, farm.Shorten(path))
		}
		if paths += len(path); paths > maxPathBytes {
			p.check("/files", longPaths("upload them into a sandbox as a tar"))
			return nil
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
	s.checkCallback(ctx, p, r.CallbackURL)
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

// Codes of what a job waits for, beside the obstacles of package scale.
const (
	waitsFIFO       = "fifo"
	waitsRunning    = "max_running"
	waitsQueueShare = "queue_share"
	waitsQueue      = "queue"
)

// place is the position of a queued job, in its queue if it has one there, or else in the FIFO of its sandbox, and what the job waits for.
func (s *Service) place(ctx context.Context, j *farm.Job) (position int, estimate *float64, waiting *wire.Waiting) {
	wait, err := s.Store.Wait(ctx, j)
	var at store.QueuePosition
	if err == nil && wait.Position > 0 {
		if at, err = s.Store.QueuePosition(ctx, j); err == nil {
			waiting, err = s.waiting(ctx, j, wait, at.Position)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.Logger.WarnContext(ctx, "what a job waits for is not known", slog.String("job_id", j.ID), slog.Any("error", err))
	}
	if at.Position == 0 {
		return wait.Position, nil, waiting
	}
	if at.Estimate >= 0 && (waiting == nil || waiting.Code != string(scale.Draining)) { // the end of a drain is not known
		seconds := math.Ceil(at.Estimate.Seconds())
		estimate = &seconds
	}
	return at.Position, estimate, waiting
}

// waiting says what a queued job waits for: first what the records say, then what the workers reported last.
func (s *Service) waiting(ctx context.Context, j *farm.Job, wait store.Wait, position int) (*wire.Waiting, error) {
	is := func(code, format string, args ...any) (*wire.Waiting, error) {
		return &wire.Waiting{Code: code, Message: fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case wait.Before == 1:
		return is(waitsFIFO, "Jobs of a sandbox run one after the other, and one comes first: %s (%s, %s).", wait.Head, wait.HeadKind, wait.HeadState)
	case wait.Before == store.MaxPlace:
		return is(waitsFIFO, "Jobs of a sandbox run one after the other, and %d or more come first: %s (%s, %s) and those behind it.", wait.Before, wait.Head, wait.HeadKind, wait.HeadState)
	case wait.Before > 1:
		return is(waitsFIFO, "Jobs of a sandbox run one after the other, and %d come first: %s (%s, %s) and those behind it.", wait.Before, wait.Head, wait.HeadKind, wait.HeadState)
	case wait.Parked && !j.Inline && wait.MaxRunning >= 0 && wait.Running >= wait.MaxRunning:
		return is(waitsRunning, "As many jobs of your tenant run or are about to as its quota max_running allows: %d.", wait.Running)
	case wait.Parked:
		return is(waitsQueueShare, "As many jobs of your tenant are before it in the queue %s as the queue share of a tenant allows: %d. It enters the queue when one of them has begun.", wait.Queue, wait.Slots)
	}
	nodes, err := s.readNodes(ctx, false)
	if err != nil {
		return nil, err
	}
	if wait.Node == "" && j.Redacted != nil && j.Redacted.Sandbox != nil {
		create := createOf(wait.Queue, j.Redacted.Sandbox, j.Kind == farm.KindRun)
		if o := scale.ObstacleOf(nodes.scale, create); o != scale.NoObstacle {
			return is(string(o), "%s", obstacleOfCreate(o, create))
		}
	} else if o, err := s.obstacleOnNode(ctx, j, wait, nodes.scale); err != nil {
		return nil, err
	} else if o != scale.NoObstacle {
		return is(string(o), "%s", obstacleOfOther(o, wait.Node))
	}
	if position > 1 {
		return is(waitsQueue, "It is number %d in the queue %s.", position, wait.Queue)
	}
	return is(waitsQueue, "It is next in the queue %s.", wait.Queue)
}

// createOf is a sandbox that waits for a node.
func createOf(queue string, spec *farm.SandboxSpec, oneShot bool) scale.Create {
	return scale.Create{Queue: queue, Image: spec.Image, Runtime: spec.Runtime, Size: spec.Resources.Capacity(), GPU: spec.GPU, OneShot: oneShot}
}

// obstacleOfCreate is a sentence about an obstacle of a create, and what ends it.
func obstacleOfCreate(o scale.Obstacle, c scale.Create) string {
	size := fmt.Sprintf("%d MiB of memory and %g cores", c.Size.MemoryMB, c.Size.CPUs)
	if c.GPU.Wanted() {
		size += fmt.Sprintf(" and %d GPUs", c.GPU.Count)
	}
	switch o {
	case scale.NoWorker:
		return "No worker is alive. It starts when one is."
	case scale.NoModel:
		return fmt.Sprintf("No live worker takes work of the queue %s.", c.Queue)
	case scale.NoImage:
		return fmt.Sprintf("No live worker offers the image %q.", c.Image)
	case scale.NoRuntime:
		return fmt.Sprintf("No live worker offers the runtime %q.", c.Runtime)
	case scale.Draining:
		return "The nodes that could take it are drained: they take no new sandboxes."
	case scale.Failing:
		return "The workers that could take it accept no jobs now; GET /v1/workers says why."
	case scale.TooLarge:
		return "No node that is in service is large enough for " + size + "."
	case scale.NoRoom:
		return "No node has " + size + " free. It starts when other sandboxes have ended, or a node is added."
	case scale.NoGPU:
		return fmt.Sprintf("No node has %d GPUs free. It starts when other sandboxes have ended, or a node is added.", c.GPU.Count)
	default:
		return "All slots of the workers that could take it are taken. It starts when another job ends."
	}
}

// obstacleOfOther is a sentence about an obstacle of a job whose node is chosen, or which any worker takes.
func obstacleOfOther(o scale.Obstacle, node string) string {
	whose := "its sandbox's node"
	if node == "" {
		whose = "the farm"
	}
	switch o {
	case scale.NoWorker:
		return "No worker of " + whose + " is alive. It starts when one is."
	case scale.Failing:
		return "The workers of " + whose + " accept no jobs now; GET /v1/workers says why."
	case scale.NoRoom:
		return "Its sandbox hibernates, and its node has too little memory or too few cores free to resume it. It starts when other sandboxes have ended."
	default:
		return "All slots of the workers of " + whose + " are taken. It starts when another job ends."
	}
}

// obstacleOnNode is why the node of a job's sandbox does not take the job now.
func (s *Service) obstacleOnNode(ctx context.Context, j *farm.Job, wait store.Wait, nodes []scale.Node) (scale.Obstacle, error) {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n scale.Node) bool { return wait.Node != "" && n.ID != wait.Node })
	free := func(has func(scale.Node) bool) bool { return slices.ContainsFunc(nodes, has) }
	switch {
	case len(nodes) == 0:
		return scale.NoWorker, nil
	case !free(func(n scale.Node) bool { return !n.Failing }):
		return scale.Failing, nil
	case wait.SandboxState == farm.SandboxHibernated && !j.Inline:
		box, err := s.Store.Sandbox(ctx, farm.Ref{Tenant: j.Tenant, ID: j.SandboxID})
		if err != nil {
			return scale.NoObstacle, err
		}
		if n := nodes[0]; n.Capacity != (farm.Capacity{}) && !n.Reserved.Plus(box.Spec.Resources.Capacity()).Within(n.Capacity) {
			return scale.NoRoom, nil
		}
	case j.Inline:
		return scale.NoObstacle, nil
	}
	if !free(func(n scale.Node) bool { return n.Running < n.Slots }) {
		return scale.Busy, nil
	}
	return scale.NoObstacle, nil
}
