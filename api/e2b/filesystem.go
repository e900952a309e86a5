package e2b

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

const (
	// maxListed is how many entries a list has. The SDKs know no pages.
	maxListed = 100_000
	// maxListedBytes is how much its entries take in memory until they are sent: with usual paths for maxListed, with very long ones for fewer.
	maxListedBytes = 96 << 20
	// maxPolled is from how many changes on one answer has no more, and maxPolledBytes how much they take in memory with their entries.
	maxPolled, maxPolledBytes = 4096, 8 << 20
)

// files implements envd.FilesystemHandler with the files of the farm.
type files struct{ *Gateway }

// Stat describes a file.
func (f files) Stat(ctx context.Context, r *connect.Request[envd.StatRequest]) (*connect.Response[envd.StatResponse], error) {
	if err := callUser(r.Header()); err != nil {
		return nil, err
	}
	entry, err := f.stat(ctx, placeOf(r.Msg.GetPath()), newLook(ctx))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.StatResponse{Entry: entry}), nil
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
	return connect.NewResponse(&envd.MakeDirResponse{Entry: f.entry(ctx, at, made, newLook(ctx))}), nil
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
	return connect.NewResponse(&envd.MoveResponse{Entry: f.entry(ctx, to, moved, newLook(ctx))}), nil
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
	out, held, l := &envd.ListDirResponse{}, budget.Gathered{Limit: maxListedBytes}, newLook(ctx)
	for page := (service.FilePage{Limit: farm.MaxFSEntries}); ; {
		list, err := f.Service.ListFS(ctx, box.Tenant, box.ID, at.real, depth, page)
		if err != nil {
			return nil, err
		}
		for _, e := range list.Items { // many links lead to a neighbour
			l.listed(e.Path, e, nil) // charged as an entry below
		}
		for _, e := range list.Items {
			shown := f.entry(ctx, at, e, l)
			if l.over != nil {
				return nil, l.over
			}
			switch err := held.Add(ctx, weightOf(shown)); {
			case errors.Is(err, budget.ErrTooLong):
				return nil, tooMany()
			case err != nil:
				return nil, err
			}
			if shown.GetType() != envd.FileType_FILE_TYPE_UNSPECIFIED {
				out.Entries = append(out.Entries, shown)
			}
		}
		if list.NextCursor == "" {
			return connect.NewResponse(out), nil
		}
		if len(out.Entries) > maxListed {
			return nil, tooMany()
		}
		if page.After, err = service.FileCursor(string(list.NextCursor)); err != nil {
			return nil, err
		}
	}
}

func tooMany() error {
	return refusef(connect.CodeResourceExhausted, "there are more than "+strconv.Itoa(maxListed)+" files, or their paths are too long together: list a directory below, or to a smaller depth")
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

// watched finds the directory that is to be watched.
func (f files) watched(ctx context.Context, h http.Header, given string) (place, error) {
	at := placeOf(given)
	if err := callUser(h); err != nil {
		return at, err
	}
	entry, err := f.stat(ctx, at, newLook(ctx))
	if err == nil && entry.GetType() != envd.FileType_FILE_TYPE_DIRECTORY {
		err = farm.Invalidf("path %s not a directory", farm.Shorten(entry.GetPath()))
	}
	return at, err
}

// WatchDir streams the changes in a directory until the caller leaves or its time is over. Beyond maxCalls and requests_per_minute they have no entries.
func (f files) WatchDir(ctx context.Context, r *connect.Request[envd.WatchDirRequest], out *connect.ServerStream[envd.WatchDirResponse]) error {
	at, err := f.watched(ctx, r.Header(), r.Msg.GetPath())
	if err != nil {
		return err
	}
	box := boxOf(ctx)
	watch, err := f.Service.WatchFiles(ctx, box.Tenant, box.ID, service.Watching{Path: at.real, Recursive: r.Msg.GetRecursive()}, "")
	if err != nil {
		return err
	}
	defer watch.Close()
	budget.Keep(ctx, 0) // what it took to begin is not needed any more
	err = out.Send(&envd.WatchDirResponse{Event: &envd.WatchDirResponse_Start{Start: &envd.WatchDirResponse_StartEvent{}}})
	ping := pingOf(r.Header())
	var l *look
	if r.Msg.GetIncludeEntry() {
		l = newLook(ctx)
	}
	for err == nil {
		if l != nil {
			l.next(ctx)
		}
		var events []wire.Event
		events, err = watch.Next(ctx, ping)
		switch {
		case errors.Is(err, io.EOF) && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF): // the server stops
			return farm.Errorf(farm.CodeUnavailable, "The server stops. Watch again.")
		case err != nil:
			return processes(f).ended(ctx, err)
		case len(events) == 0:
			err = out.Send(&envd.WatchDirResponse{Event: &envd.WatchDirResponse_Keepalive{Keepalive: &envd.WatchDirResponse_KeepAlive{}}})
		}
		for _, e := range events {
			var data wire.FileChange
			if json.Unmarshal(e.Data, &data) != nil || data.Path == "" {
				continue // ready, and dropped: the SDKs know no such event
			}
			change := relay.FileEvent{Kind: relay.FileKind(e.Name), Path: data.Path, Metadata: data.Metadata}
			if data.From != nil {
				change.From = *data.From
			}
			for _, one := range f.events(ctx, at, change, l) {
				if err = out.Send(&envd.WatchDirResponse{Event: &envd.WatchDirResponse_Filesystem{Filesystem: one}}); err != nil {
					return err
				}
			}
		}
	}
	return err
}

// events are those of E2B that a change of the farm stands for. There a rename is the end of one name and the beginning of another.
// l is for their entries; nil: they have none.
func (f files) events(ctx context.Context, at place, change relay.FileEvent, l *look) []*envd.FilesystemEvent {
	event := func(path string, kind envd.EventType) *envd.FilesystemEvent {
		out := &envd.FilesystemEvent{Name: strings.TrimPrefix(strings.TrimPrefix(path, at.real), "/"), Type: kind}
		if l != nil && kind != envd.EventType_EVENT_TYPE_REMOVE && kind != envd.EventType_EVENT_TYPE_RENAME {
			if entry, err := f.stat(ctx, place{real: path, home: at.home}, l); err == nil { // otherwise it is gone already
				out.Entry = entry
			}
		}
		return out
	}
	switch change.Kind {
	case relay.FileCreated:
		return []*envd.FilesystemEvent{event(change.Path, envd.EventType_EVENT_TYPE_CREATE)}
	case relay.FileChanged:
		if change.Metadata {
			return []*envd.FilesystemEvent{event(change.Path, envd.EventType_EVENT_TYPE_CHMOD)}
		}
		return []*envd.FilesystemEvent{event(change.Path, envd.EventType_EVENT_TYPE_WRITE)}
	case relay.FileRemoved:
		return []*envd.FilesystemEvent{event(change.Path, envd.EventType_EVENT_TYPE_REMOVE)}
	case relay.FileRenamed:
		return []*envd.FilesystemEvent{event(change.From, envd.EventType_EVENT_TYPE_RENAME), event(change.Path, envd.EventType_EVENT_TYPE_CREATE)}
	case relay.FileDropped:
	}
	return nil
}

// watcher is what the id of a watcher says. The farm keeps nothing else of it.
type watcher struct {
	id      string // by which the farm knows it
	at      place
	entries bool // its events are to have entries
}

// String is the id that the SDKs have.
func (w watcher) String() string {
	flags := []byte("--")
	if w.at.home {
		flags[0] = 'h'
	}
	if w.entries {
		flags[1] = 'e'
	}
	return w.id + "." + string(flags) + base64.RawURLEncoding.EncodeToString([]byte(w.at.real))
}

// watcherOf reads the id of a watcher.
func watcherOf(text string) (watcher, error) {
	id, rest, _ := strings.Cut(text, ".")
	if len(rest) >= 2 && farm.ValidID(farm.WatchPrefix, id) {
		if real, err := base64.RawURLEncoding.DecodeString(rest[2:]); err == nil {
			return watcher{id: id, at: place{real: string(real), home: rest[0] == 'h'}, entries: rest[1] == 'e'}, nil
		}
	}
	return watcher{}, farm.NotFoundf("watcher with id %s not found", farm.Shorten(text))
}

// CreateWatcher watches a directory for a caller who asks for its changes.
func (f files) CreateWatcher(ctx context.Context, r *connect.Request[envd.CreateWatcherRequest]) (*connect.Response[envd.CreateWatcherResponse], error) {
	at, err := f.watched(ctx, r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	box := boxOf(ctx)
	id, err := f.Service.Watcher(ctx, box.Tenant, box.ID, service.Watching{Path: at.real, Recursive: r.Msg.GetRecursive()})
	if err != nil {
		return nil, err
	}
	made := watcher{id: id, at: at, entries: r.Msg.GetIncludeEntry()}
	return connect.NewResponse(&envd.CreateWatcherResponse{WatcherId: made.String()}), nil
}

// GetWatcherEvents returns what has changed since it was asked before. What was polled is not polled again: beyond maxPolledBytes, maxCalls and
// requests_per_minute, and where memory is short, it has no entries.
func (f files) GetWatcherEvents(ctx context.Context, r *connect.Request[envd.GetWatcherEventsRequest]) (*connect.Response[envd.GetWatcherEventsResponse], error) {
	w, err := watcherOf(r.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	box := boxOf(ctx)
	out, held, full := &envd.GetWatcherEventsResponse{}, budget.Gathered{Limit: maxPolledBytes}, false
	var l *look
	if w.entries {
		l = newLook(ctx)
	}
	for calls := 0; ; calls++ { // an answer of the agent has some hundred, and it keeps some thousand
		if calls > 0 && calls%callsPerRequest == 0 {
			if _, err := f.Gate.More(ctx, box.Tenant, 1); err != nil {
				return connect.NewResponse(out), nil // the others come with the next request
			}
		}
		got, err := f.Service.WatcherChanges(ctx, box.Tenant, box.ID, w.id)
		if err != nil {
			return nil, err
		}
		for _, change := range got.Events {
			for _, event := range f.events(ctx, w.at, change, l) {
				n := entryBytes + int64(len(event.GetName()))*budget.BodyWeight + weightOf(event.GetEntry())
				if full = full || held.Add(ctx, n) != nil; full {
					event.Entry, l = nil, nil
				}
				out.Events = append(out.Events, event)
			}
		}
		if full || len(got.Events) == 0 || len(out.Events) >= maxPolled {
			return connect.NewResponse(out), nil
		}
	}
}

// RemoveWatcher ends a watcher.
func (f files) RemoveWatcher(ctx context.Context, r *connect.Request[envd.RemoveWatcherRequest]) (*connect.Response[envd.RemoveWatcherResponse], error) {
	w, err := watcherOf(r.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	box := boxOf(ctx)
	if err := f.Service.EndWatcher(ctx, box.Tenant, box.ID, w.id); err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.RemoveWatcherResponse{}), nil
}
