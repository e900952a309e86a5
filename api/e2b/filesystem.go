package e2b

import (
	"context"
	"io/fs"
	"path"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxLinks is how many symbolic links are followed to learn what one leads to.
	maxLinks = 40
	// maxListed is how many entries a list has. The SDKs know no pages.
	maxListed = 100_000
	// entryBytes is about what an entry takes in memory until it is sent, beside its path.
	entryBytes = 512
	// maxListedBytes is how much that is for a list: entries with usual paths up to maxListed, fewer with very long ones.
	maxListedBytes = 96 << 20
)

// files implements envd.FilesystemHandler with the files of the farm.
type files struct{ *Door }

// Stat describes a file.
func (f files) Stat(ctx context.Context, r *connect.Request[envd.StatRequest]) (*connect.Response[envd.StatResponse], error) {
	if err := callUser(r.Header()); err != nil {
		return nil, err
	}
	entry, err := f.stat(ctx, placeOf(r.Msg.GetPath()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.StatResponse{Entry: entry}), nil
}

// stat describes what is at a place.
func (f files) stat(ctx context.Context, at place) (*envd.EntryInfo, error) {
	box := boxOf(ctx)
	e, err := f.Service.StatFS(ctx, box.Tenant, box.ID, at.real)
	if err != nil {
		return nil, err
	}
	return f.entry(ctx, at, e), nil
}

// entry describes a file. Of a link, type, mode and size are those of what it leads to.
func (f files) entry(ctx context.Context, at place, e wire.FSEntry) *envd.EntryInfo {
	bits, _ := strconv.ParseUint(e.Mode, 8, 32) // the agent's form is checked
	out := &envd.EntryInfo{
		Name: path.Base(e.Path), Path: at.shown(e.Path), Size: sizeOf(e), Owner: nameOf(e.UID), Group: nameOf(e.GID), ModifiedTime: timestamppb.New(e.ModifiedAt),
		Metadata: e.Metadata,
	}
	kind := e
	if e.Type == "symlink" {
		out.IsSymlink = true
		target, found, err := f.follow(ctx, e)
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

// sizeOf is the size of a file or a directory.
func sizeOf(e wire.FSEntry) int64 { return e.Size + e.DirSize }

func modeOf(e wire.FSEntry) uint64 {
	bits, _ := strconv.ParseUint(e.Mode, 8, 32) // the agent's form is checked
	return bits
}

// follow follows a link. The error is that of the last step; the path is how far it got.
func (f files) follow(ctx context.Context, e wire.FSEntry) (string, wire.FSEntry, error) {
	box := boxOf(ctx)
	at := e.Path
	for range maxLinks {
		if e.Target == nil {
			break
		}
		if at = path.Clean(*e.Target); !path.IsAbs(at) {
			at = path.Join(path.Dir(e.Path), at)
		}
		var err error
		if e, err = f.Service.StatFS(ctx, box.Tenant, box.ID, at); err != nil {
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

// MakeDir makes a directory and those above it.
func (f files) MakeDir(ctx context.Context, r *connect.Request[envd.MakeDirRequest]) (*connect.Response[envd.MakeDirResponse], error) {
	if err := callUser(r.Header()); err != nil {
		return nil, err
	}
	box, at := boxOf(ctx), placeOf(r.Msg.GetPath())
	switch there, err := f.Service.StatFS(ctx, box.Tenant, box.ID, at.real); {
	case err == nil && there.Type == "dir":
		return nil, refusef(connect.CodeAlreadyExists, "directory already exists: "+at.shown(there.Path))
	case err == nil && there.Type != "symlink":
		return nil, refusef(connect.CodeInvalidArgument, "path already exists but it is not a directory: "+at.shown(there.Path))
	case err != nil && farm.CodeOf(err) != farm.CodeNotFound:
		return nil, err
	}
	made, err := f.Service.MkdirFS(ctx, box.Tenant, box.ID, at.real, "")
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.MakeDirResponse{Entry: f.entry(ctx, at, made)}), nil
}

// Move renames a file or a directory.
func (f files) Move(ctx context.Context, r *connect.Request[envd.MoveRequest]) (*connect.Response[envd.MoveResponse], error) {
	if err := callUser(r.Header()); err != nil {
		return nil, err
	}
	box, from, to := boxOf(ctx), placeOf(r.Msg.GetSource()), placeOf(r.Msg.GetDestination())
	moved, err := f.Service.MoveFS(ctx, service.Call{Tenant: box.Tenant}, box.ID, wire.FSMove{From: from.real, To: to.real})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.MoveResponse{Entry: f.entry(ctx, to, moved)}), nil
}

// ListDir lists what is in a directory, down to a depth.
func (f files) ListDir(ctx context.Context, r *connect.Request[envd.ListDirRequest]) (*connect.Response[envd.ListDirResponse], error) {
	if err := callUser(r.Header()); err != nil {
		return nil, err
	}
	depth := max(int(r.Msg.GetDepth()), 1)
	if depth > farm.MaxFSDepth {
		depth = farm.MaxFSDepth // all that there is
	}
	box, at := boxOf(ctx), placeOf(r.Msg.GetPath())
	out, total := &envd.ListDirResponse{}, int64(0)
	for page := (service.FilePage{Limit: farm.MaxFSEntries}); ; {
		list, err := f.Service.ListFS(ctx, box.Tenant, box.ID, at.real, depth, page)
		if err != nil {
			return nil, err
		}
		size := int64(len(list.Items)) * entryBytes
		for _, e := range list.Items {
			size += int64(len(e.Path)) * budget.BodyWeight // as it is listed, and as name and path in the answer
			if e.Target != nil {
				size += int64(len(*e.Target)) * budget.BodyWeight
			}
			for key, value := range e.Metadata {
				size += int64(len(key) + len(value))
			}
		}
		if err := budget.Charge(ctx, size); err != nil {
			return nil, err
		}
		total += size
		for _, e := range list.Items {
			if shown := f.entry(ctx, at, e); shown.GetType() != envd.FileType_FILE_TYPE_UNSPECIFIED {
				out.Entries = append(out.Entries, shown)
			}
		}
		if list.NextCursor == "" {
			return connect.NewResponse(out), nil
		}
		if len(out.Entries) > maxListed || total > maxListedBytes {
			return nil, refusef(connect.CodeResourceExhausted, "there are more than "+strconv.Itoa(maxListed)+" files, or their paths are too long together: list a directory below, or to a smaller depth")
		}
		if page.After, err = service.FileCursor(string(list.NextCursor)); err != nil {
			return nil, err
		}
	}
}

// Remove removes a file, or a directory with all that is in it. One that is missing is no error.
func (f files) Remove(ctx context.Context, r *connect.Request[envd.RemoveRequest]) (*connect.Response[envd.RemoveResponse], error) {
	if err := callUser(r.Header()); err != nil {
		return nil, err
	}
	box := boxOf(ctx)
	err := f.Service.RemoveFS(ctx, box.Tenant, box.ID, placeOf(r.Msg.GetPath()).real)
	if err != nil && farm.CodeOf(err) != farm.CodeNotFound {
		return nil, err
	}
	return connect.NewResponse(&envd.RemoveResponse{}), nil
}
