package api_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// workspace keeps the files of every sandbox in memory.
type workspace struct {
	mu     sync.Mutex
	files  map[string][]byte
	inline int64 // bytes of a file that are part of a result; 0: 1000
}

// pageBytes bounds the paths of a page, as the agent does.
const pageBytes = 8 << 20

func (f *workspace) do(ctx context.Context, blobs *memory, r *farm.FileRequest) (*farm.FileResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entry := func(path string) farm.FileEntry {
		return farm.FileEntry{Path: path, Size: int64(len(f.files[path])), Mode: "0644", Type: "file", ModifiedAt: time.Unix(1e9, 0)}
	}
	content, there := f.files[r.Path]
	switch r.Op {
	case farm.FileMany, farm.FileWrite:
		parts := r.Parts
		if r.Op == farm.FileWrite {
			parts = []farm.InputFile{{Path: r.Path, Staged: r.Staged}}
		}
		out := &farm.FileResult{}
		for _, p := range parts {
			if p.Staged != "" {
				p.Content = blobs.take(p.Staged)
			}
			f.files[p.Path] = p.Content
			out.Entries = append(out.Entries, entry(p.Path))
		}
		return out, nil
	case farm.FileTar:
		if !bytes.Contains(blobs.take(r.Staged), []byte("ustar")) {
			return nil, farm.Invalidf("the body is not a tar")
		}
		return &farm.FileResult{}, nil
	case farm.FileMkdir:
		return &farm.FileResult{Entries: []farm.FileEntry{{Path: r.Path, Type: "dir"}}}, nil
	case farm.FileList:
		out, size := &farm.FileResult{TooLong: len(f.files["too-long"])}, 0
		for _, path := range slices.Sorted(maps.Keys(f.files)) {
			if path <= r.After {
				continue
			}
			size += len(path)
			if out.More = r.Limit > 0 && len(out.Entries) == r.Limit || size > pageBytes; out.More {
				break
			}
			out.Entries = append(out.Entries, entry(path))
		}
		return out, nil
	default:
	}
	if !there {
		return nil, farm.NotFoundf("There is no file %q.", r.Path)
	}
	out := &farm.FileResult{Entries: []farm.FileEntry{entry(r.Path)}, Size: int64(len(content)), Offset: r.Offset}
	switch r.Op {
	case farm.FileDelete:
		delete(f.files, r.Path)
	case farm.FileMove:
		delete(f.files, r.Path)
		f.files[r.To] = content
		out.Entries = []farm.FileEntry{entry(r.To)}
	case farm.FileRead:
		content = content[r.Offset:]
		if r.Length > 0 {
			content = content[:r.Length]
		}
		if out.Length = int64(len(content)); out.Length > cmp.Or(f.inline, 1000) || r.Link {
			out.Staged = r.Staged
			_, err := blobs.Put(ctx, r.Staged, bytes.NewReader(content), -1, blob.PutOptions{})
			return out, err
		}
		out.Content = content
	default:
	}
	return out, nil
}

// memory is an object store in memory.
type memory struct {
	mu      sync.Mutex
	objects map[string][]byte
	linked  blob.PresignOptions // of the last link
	down    bool
}

func (m *memory) Put(_ context.Context, key string, r io.Reader, _ int64, _ blob.PutOptions) (blob.Info, error) {
	content, err := io.ReadAll(r)
	if err != nil {
		return blob.Info{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return blob.Info{}, farm.Errorf(farm.CodeUnavailable, "The object store does not answer.")
	}
	m.objects[key] = content
	return blob.Info{Key: key, Size: int64(len(content)), SHA256: hash(string(content))}, nil
}

func (m *memory) Get(_ context.Context, key string, _, _ int64) (io.ReadCloser, blob.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	content, ok := m.objects[key]
	if !ok {
		return nil, blob.Info{}, farm.NotFoundf("no object")
	}
	return io.NopCloser(bytes.NewReader(content)), blob.Info{Key: key, Size: int64(len(content))}, nil
}

func (m *memory) Delete(_ context.Context, keys ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.objects, key)
	}
	return nil
}

func (m *memory) Presign(_ context.Context, key string, o blob.PresignOptions) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.linked = o
	return "http://s3.test/" + key + "?name=" + o.Filename, nil
}

func (m *memory) Ping(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return farm.Errorf(farm.CodeUnavailable, "The object store does not answer.")
	}
	return nil
}

func (m *memory) take(key string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	content := m.objects[key]
	delete(m.objects, key)
	return content
}

func (m *memory) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for key := range m.objects {
		out = append(out, key)
	}
	return out
}

type depths struct{}

func (depths) Depths(context.Context) ([]farm.QueueDepth, error) {
	return []farm.QueueDepth{{Name: "node-n1", Depth: 2, Running: 1}}, nil
}

// resolver resolves three names.
type resolver struct{}

func (resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	switch strings.TrimSuffix(host, ".") {
	case "hooks.example.com":
		return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
	case "rebind.example.com":
		return []netip.Addr{netip.MustParseAddr("93.184.215.14"), netip.MustParseAddr("10.0.0.1")}, nil
	default:
		return nil, errors.New("no such host")
	}
}
