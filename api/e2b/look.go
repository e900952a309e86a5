package e2b

import (
	"cmp"
	"context"
	"io/fs"
	"path"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxLinks is how many symbolic links are followed to learn what one leads to.
	maxLinks = 40
	// maxCalls is how many calls the sandbox gets for the entries of one answer, one for each file outside a list that links of it lead to, and for each
	// entry of a change. A thousand take it some 0.7 s of a core.
	maxCalls = 1000
	// callsPerRequest is how many of these calls count as one more of requests_per_minute.
	callsPerRequest = 20
	// entryBytes is about what an entry takes in memory until it is sent, beside its path.
	entryBytes = 512
)

// look finds what the entries of one answer need, each file once.
type look struct {
	known map[string]seen // by path
	calls int             // that are left
	made  int             // since a request was counted
	over  error           // one more was needed
	held  budget.Gathered // known
	had   int64           // what the request was charged before
}

// seen is what was found at a path, without its metadata: of what a link leads to none is shown.
type seen struct {
	entry    wire.FSEntry
	metadata bool // it has some
	err      error
}

func newLook(ctx context.Context) *look {
	return &look{known: map[string]seen{}, calls: maxCalls, had: budget.Held(ctx)}
}

// next begins another answer to the same request, of which nothing is held.
func (l *look) next(ctx context.Context) {
	clear(l.known)
	l.calls, l.over, l.held = maxCalls, nil, budget.Gathered{}
	budget.Keep(ctx, l.had)
}

// keep remembers what was found at a path.
func (l *look) keep(ctx context.Context, path string, e wire.FSEntry, err error) {
	n := len(path) + len(e.Path)
	if e.Target != nil {
		n += len(*e.Target)
	}
	if l.over = l.held.Add(ctx, entryBytes+int64(n)); l.over == nil {
		l.listed(path, e, err)
	}
}

// listed remembers what was found at a path, and is charged for already.
func (l *look) listed(path string, e wire.FSEntry, err error) {
	metadata := len(e.Metadata) > 0
	e.Metadata = nil
	l.known[path] = seen{e, metadata, err}
}

// at returns the file with a path, and its metadata if it is to be shown. It does not follow a link.
func (l *look) at(ctx context.Context, f files, path string, shown bool) (wire.FSEntry, error) {
	if there, ok := l.known[path]; ok && !(shown && there.metadata) {
		return there.entry, there.err
	}
	box := boxOf(ctx)
	switch {
	case l.over != nil:
	case l.calls == 0:
		l.over = refusef(connect.CodeResourceExhausted, "there are more than "+strconv.Itoa(maxCalls)+" files that symbolic links lead to outside the list: list a directory below, or to a smaller depth")
	case l.made == callsPerRequest:
		if _, l.over = f.Gate.More(ctx, box.Tenant, 1); l.over == nil {
			l.made = 0
		}
	}
	if l.over != nil {
		return wire.FSEntry{}, l.over
	}
	l.calls--
	l.made++
	e, err := f.Service.StatFS(ctx, box.Tenant, box.ID, path)
	l.keep(ctx, path, e, err)
	return e, cmp.Or(l.over, err)
}

// stat describes what is at a place.
func (f files) stat(ctx context.Context, at place, l *look) (*envd.EntryInfo, error) {
	e, err := l.at(ctx, f, at.real, true)
	if err != nil {
		return nil, err
	}
	return f.entry(ctx, at, e, l), nil
}

// entry describes a file. Of a link, type, mode and size are those of what it leads to.
func (f files) entry(ctx context.Context, at place, e wire.FSEntry, l *look) *envd.EntryInfo {
	bits, _ := strconv.ParseUint(e.Mode, 8, 32) // the agent's form is checked
	out := &envd.EntryInfo{
		Name: path.Base(e.Path), Path: at.shown(e.Path), Size: sizeOf(e), Owner: nameOf(e.UID), Group: nameOf(e.GID), ModifiedTime: timestamppb.New(e.ModifiedAt),
		Metadata: e.Metadata,
	}
	kind := e
	if e.Type == "symlink" {
		out.IsSymlink = true
		target, found, err := f.follow(ctx, e, l)
		if err == nil {
			kind, bits = found, modeOf(found)
			out.Size = sizeOf(found)
		}
		shown := at.shown(target)
		out.SymlinkTarget = &shown
	}
	mode := fs.FileMode(bits & 0o777) //nolint:gosec // nine bits
	switch kind.Type {
	case "file":
		out.Type = envd.FileType_FILE_TYPE_FILE
	case "dir":
		out.Type = envd.FileType_FILE_TYPE_DIRECTORY
		mode |= fs.ModeDir
	case "symlink":
		out.Type = envd.FileType_FILE_TYPE_SYMLINK // it leads to nothing
		mode |= fs.ModeSymlink
	}
	out.Mode, out.Permissions = uint32(mode.Perm()), mode.String()
	return out
}

// weightOf is about what an entry takes in memory until it is sent; 0 for none.
func weightOf(e *envd.EntryInfo) int64 {
	if e == nil {
		return 0
	}
	n := entryBytes + int64(len(e.GetPath())+len(e.GetSymlinkTarget()))*budget.BodyWeight // as they were read, and as name and path in the answer
	for key, value := range e.GetMetadata() {
		n += int64(len(key)+len(value)) * 2
	}
	return n
}

// sizeOf is the size of a file or a directory.
func sizeOf(e wire.FSEntry) int64 { return e.Size + e.DirSize }

func modeOf(e wire.FSEntry) uint64 {
	bits, _ := strconv.ParseUint(e.Mode, 8, 32) // the agent's form is checked
	return bits
}

// follow follows a link. The error is that of the last step; the path is how far it got.
func (f files) follow(ctx context.Context, e wire.FSEntry, l *look) (string, wire.FSEntry, error) {
	at := e.Path
	for range maxLinks {
		if e.Target == nil {
			break
		}
		if at = path.Clean(*e.Target); !path.IsAbs(at) {
			at = path.Join(path.Dir(e.Path), at)
		}
		found, err := l.at(ctx, f, at, false)
		if e = found; err != nil {
			return at, e, err
		}
	}
	if e.Target == nil {
		return at, e, nil
	}
	return at, e, farm.Invalidf("%s leads through too many links", farm.Shorten(e.Path))
}

// nameOf is the name of a user or group. The sandbox's own has a number of its own in each sandbox.
func nameOf(id int) string {
	switch id {
	case 0:
		return "root"
	case 65534:
		return "nobody"
	}
	return userName
}
