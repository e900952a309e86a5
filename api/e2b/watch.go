package e2b

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

// watched finds the directory that is to be watched.
func (f files) watched(ctx context.Context, h http.Header, given string) (place, error) {
	at := placeOf(given)
	if err := callUser(h); err != nil {
		return at, err
	}
	entry, err := f.stat(ctx, at)
	if err == nil && entry.GetType() != envd.FileType_FILE_TYPE_DIRECTORY {
		err = farm.Invalidf("path %s not a directory", farm.Shorten(entry.GetPath()))
	}
	return at, err
}

// WatchDir streams the changes in a directory until the caller leaves or its time is over.
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
	err = out.Send(&envd.WatchDirResponse{Event: &envd.WatchDirResponse_Start{Start: &envd.WatchDirResponse_StartEvent{}}})
	ping := pingOf(r.Header())
	for err == nil {
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
			var said wire.FileChange
			if json.Unmarshal(e.Data, &said) != nil || said.Path == "" {
				continue // ready, and dropped: the SDKs know no such event
			}
			change := relay.FileEvent{Kind: relay.FileKind(e.Name), Path: said.Path, Metadata: said.Metadata}
			if said.From != nil {
				change.From = *said.From
			}
			for _, one := range f.events(ctx, at, change, r.Msg.GetIncludeEntry()) {
				if err = out.Send(&envd.WatchDirResponse{Event: &envd.WatchDirResponse_Filesystem{Filesystem: one}}); err != nil {
					return err
				}
			}
		}
	}
	return err
}

// events are those of E2B that a change of the farm stands for. There a rename is the end of one name and the beginning of another.
func (f files) events(ctx context.Context, at place, change relay.FileEvent, withEntry bool) []*envd.FilesystemEvent {
	event := func(path string, kind envd.EventType) *envd.FilesystemEvent {
		out := &envd.FilesystemEvent{Name: strings.TrimPrefix(strings.TrimPrefix(path, at.real), "/"), Type: kind}
		if withEntry && kind != envd.EventType_EVENT_TYPE_REMOVE && kind != envd.EventType_EVENT_TYPE_RENAME {
			if entry, err := f.stat(ctx, place{real: path, home: at.home}); err == nil { // otherwise it is gone already
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

// GetWatcherEvents returns what has changed since it was asked before.
func (f files) GetWatcherEvents(ctx context.Context, r *connect.Request[envd.GetWatcherEventsRequest]) (*connect.Response[envd.GetWatcherEventsResponse], error) {
	w, err := watcherOf(r.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	box := boxOf(ctx)
	out := &envd.GetWatcherEventsResponse{}
	for { // an answer of the agent has some hundred, and it keeps some thousand
		got, err := f.Service.WatcherChanges(ctx, box.Tenant, box.ID, w.id)
		if err != nil {
			return nil, err
		}
		for _, change := range got.Events {
			out.Events = append(out.Events, f.events(ctx, w.at, change, w.entries)...)
		}
		if len(got.Events) == 0 || len(out.Events) >= maxPolled {
			return connect.NewResponse(out), nil
		}
	}
}

// maxPolled is from how many changes on one answer has no more.
const maxPolled = 4096

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
