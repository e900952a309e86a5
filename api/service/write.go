package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// maxParts is how many files one upload may hold; a tar may hold more.
const maxParts = 10_000

const (
	// maxPathBytes is how many bytes the paths of an upload's files, or of a run's, have together: those of ten thousand files have 200 bytes each. They are in
	// memory until the last file has come, and then several times, encoded.
	maxPathBytes = 2 << 20
	// partBytes is about what is held of a file of an upload beside its path.
	partBytes = 128
)

// longPaths refuses paths of more than maxPathBytes.
func longPaths(instead string) error {
	return farm.Errorf(farm.CodeTooLarge, "the paths of the files have more than %d bytes together, which is the limit: %s instead", maxPathBytes, instead)
}

// Part is one file of an upload of several. Its reader is valid until the next part is read.
type Part struct {
	Path    string
	Content io.Reader
}

// open fails if the sandbox of an upload accepts no work, so that a caller does not send gigabytes to a closed one.
func (s *Service) open(ctx context.Context, tenant, id string) (*farm.Sandbox, error) {
	box, err := s.sandbox(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	if !box.State.Accepts() {
		return nil, farm.NoMoreWork(id, box.State, box.Reason)
	}
	return box, nil
}

// WriteFile stores a file; size -1: unknown. A path that ends in a slash creates a directory.
func (s *Service) WriteFile(ctx context.Context, c Call, sandboxID, path string, content io.Reader, size int64) (Outcome, error) {
	clean, err := farm.CleanFilePath(path)
	if err != nil {
		return Outcome{}, err
	}
	if strings.HasSuffix(path, "/") {
		return s.change(ctx, c, sandboxID, farm.FileRequest{Op: farm.FileMkdir, Path: clean}, nil, "")
	}
	if size > s.limits.MaxFileBytes {
		return Outcome{}, tooLarge(s.limits.MaxFileBytes)
	}
	box, err := s.open(ctx, c.Tenant, sandboxID)
	if err != nil {
		return Outcome{}, err
	}
	job := s.record(c, farm.KindFile, sandboxID)
	staged := s.stage(job, box.Spec.Resources.DiskMB)
	part, sum, err := staged.take(ctx, Part{Path: clean, Content: s.capped(content)}, size)
	if err != nil {
		staged.drop(ctx)
		return Outcome{}, err
	}
	request := farm.FileRequest{Op: farm.FileWrite, Path: clean, Staged: part.Staged, Size: part.Size}
	if part.Staged == "" {
		request = farm.FileRequest{Op: farm.FileMany, Path: ".", Parts: []farm.InputFile{part}}
	}
	return s.changeStaged(ctx, c, job, staged, request, "", sum)
}

// take reads one file and returns its hash. A small file is stored in the request, a larger one in the object store.
func (g *stage) take(ctx context.Context, p Part, size int64) (farm.InputFile, string, error) {
	file := farm.InputFile{Path: p.Path}
	if g.head == nil {
		if err := budget.Charge(ctx, inlineBytes+1); err != nil {
			return file, "", err
		}
		g.head = make([]byte, inlineBytes+1) // for all files: there may be thousands
	}
	head := g.head[:max(0, inlineBytes-g.inline)+1]
	n, err := io.ReadFull(p.Content, head)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		if _, ours := errors.AsType[*farm.Error](err); ours {
			return file, "", err
		}
		file.Content, file.Size = bytes.Clone(head[:n]), int64(n)
		g.inline += n
		sum := sha256.Sum256(head[:n])
		return file, hex.EncodeToString(sum[:]), nil
	case err != nil:
		return file, "", err
	}
	info, err := g.put(ctx, io.MultiReader(bytes.NewReader(head[:n]), p.Content), size)
	if err != nil {
		return file, "", err
	}
	file.Staged, file.Size = info.Key, info.Size
	return file, info.SHA256, nil
}

// WriteTar unpacks an uncompressed tar under a directory, all or nothing. The agent checks its members.
func (s *Service) WriteTar(ctx context.Context, c Call, sandboxID, directory string, content io.Reader, size int64) (Outcome, error) {
	clean, err := farm.CleanPath(directory)
	if err != nil {
		return Outcome{}, err
	}
	if size > s.limits.MaxFileBytes {
		return Outcome{}, tooLarge(s.limits.MaxFileBytes)
	}
	box, err := s.open(ctx, c.Tenant, sandboxID)
	if err != nil {
		return Outcome{}, err
	}
	job := s.record(c, farm.KindFile, sandboxID)
	staged := s.stage(job, box.Spec.Resources.DiskMB)
	info, err := staged.put(ctx, s.capped(content), size)
	if err != nil {
		staged.drop(ctx)
		return Outcome{}, err
	}
	if info.Size == 0 {
		staged.drop(ctx)
		return Outcome{}, farm.Invalidf("the body is empty: send a tar")
	}
	return s.changeStaged(ctx, c, job, staged, farm.FileRequest{Op: farm.FileTar, Path: clean, Staged: info.Key, Size: info.Size}, "", info.SHA256)
}

// WriteFiles stores several files under a directory; next returns them in order, then io.EOF.
func (s *Service) WriteFiles(ctx context.Context, c Call, sandboxID, directory string, next func() (Part, error)) (Outcome, error) {
	under, err := farm.CleanPath(directory)
	if err != nil {
		return Outcome{}, err
	}
	box, err := s.open(ctx, c.Tenant, sandboxID)
	if err != nil {
		return Outcome{}, err
	}
	job := s.record(c, farm.KindFile, sandboxID)
	staged := s.stage(job, box.Spec.Resources.DiskMB)
	parts, sums, err := s.parts(ctx, staged, under, next)
	if err != nil {
		staged.drop(ctx)
		return Outcome{}, err
	}
	return s.changeStaged(ctx, c, job, staged, farm.FileRequest{Op: farm.FileMany, Path: ".", Parts: parts}, "", sums...)
}

func (s *Service) parts(ctx context.Context, staged *stage, under string, next func() (Part, error)) (files []farm.InputFile, sums []string, err error) {
	seen, paths, held := make(map[string]bool), 0, budget.Gathered{}
	for {
		part, err := next()
		switch {
		case errors.Is(err, io.EOF):
			if len(files) == 0 {
				return nil, nil, farm.Invalidf("the body holds no files: send each as a part with a file name")
			}
			return files, sums, nil
		case err != nil:
			return nil, nil, err
		case len(files) == maxParts:
			return nil, nil, farm.Invalidf("the body holds more than %d files: send a tar instead", maxParts)
		}
		clean, err := farm.CleanFilePath(part.Path)
		if err != nil {
			return nil, nil, err
		}
		if under != "." {
			clean = under + "/" + clean
		}
		if seen[clean] {
			return nil, nil, farm.Invalidf("the file %q is in the upload twice", farm.Shorten(clean))
		}
		if paths += len(clean); paths > maxPathBytes {
			return nil, nil, longPaths("send a tar")
		}
		if err := held.Add(ctx, int64(len(clean)+partBytes)*budget.BodyWeight); err != nil {
			return nil, nil, err
		}
		seen[clean] = true
		file, sum, err := staged.take(ctx, Part{Path: clean, Content: s.capped(part.Content)}, -1)
		if err != nil {
			return nil, nil, err
		}
		files, sums = append(files, file), append(sums, clean, sum)
	}
}

// DeleteFile removes a file, or a directory with its contents.
func (s *Service) DeleteFile(ctx context.Context, c Call, sandboxID, path string) (Outcome, error) {
	clean, err := farm.CleanFilePath(path)
	if err != nil {
		return Outcome{}, err
	}
	return s.change(ctx, c, sandboxID, farm.FileRequest{Op: farm.FileDelete, Path: clean, Recursive: true}, nil, "")
}

// MoveFile renames a file or directory within the workspace.
func (s *Service) MoveFile(ctx context.Context, c Call, sandboxID string, r wire.MoveRequest) (Outcome, error) {
	p := c.problems()
	from, err := farm.CleanFilePath(r.From)
	if err != nil {
		p.addf("/from", "from: %s", farm.MessageOf(err))
	}
	to, err := farm.CleanFilePath(r.To)
	if err != nil {
		p.addf("/to", "to: %s", farm.MessageOf(err))
	}
	s.checkCallback(ctx, p, r.CallbackURL)
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	return s.change(ctx, c, sandboxID, farm.FileRequest{Op: farm.FileMove, Path: from, To: to}, nil, r.CallbackURL)
}

// change is one change of the workspace that needs no staged bytes.
func (s *Service) change(ctx context.Context, c Call, sandboxID string, r farm.FileRequest, sums []string, callback string) (Outcome, error) {
	if !farm.ValidID(farm.SandboxPrefix, sandboxID) {
		return Outcome{}, noSandbox(sandboxID)
	}
	job := s.record(c, farm.KindFile, sandboxID)
	return s.changeStaged(ctx, c, job, s.stage(job, 0), r, callback, sums...)
}

// changeStaged submits the change. If it fails within the wait, its error is the answer.
func (s *Service) changeStaged(ctx context.Context, c Call, job *farm.Job, staged *stage, r farm.FileRequest, callback string, sums ...string) (Outcome, error) {
	idem, err := c.idempotency(sums...)
	if err != nil {
		staged.drop(ctx)
		return Outcome{}, err
	}
	job.CallbackURL = callback
	out, err := staged.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{File: &r}, Idempotency: idem})
	if err != nil || !out.Done() {
		return out, err
	}
	return s.fileOutcome(out)
}

// fileOutcome converts a final file job to the answer: its result, or its error as the error of the request.
func (s *Service) fileOutcome(out Outcome) (Outcome, error) {
	job := out.record
	if job.State == farm.JobCompleted {
		out.Entries = []wire.FileEntry{}
		if job.Result != nil && job.Result.File != nil {
			out.Entries = entriesOf(job.Result.File.Entries)
		}
		return out, nil
	}
	switch {
	case job.State == farm.JobCanceled:
		return out, farm.Conflictf("The job %s was canceled before it was done.", job.ID)
	case job.State == farm.JobTimedOut:
		return out, farm.Errorf(farm.CodeUnavailable, "The sandbox did not finish the job %s in time.", job.ID)
	case job.Error != nil && job.Error.Code != farm.CodeInternal && job.Error.Code != "":
		return out, farm.Errorf(job.Error.Code, "%s", job.Error.Message)
	default:
		return out, farm.Errorf(farm.CodeUnavailable, "The job %s failed because of an error of the farm. Try again.", job.ID)
	}
}
