package engineproxy

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// fullID is the id of a container or an exec. A name or a shortened id may mean another container later.
var fullID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// described is what the proxy reads of a container.
type described struct {
	ID     string `json:"Id"`
	Config struct {
		Labels map[string]string
	}
}

// look asks the engine for a container and remembers it. It is refused unless it is of this farm.
func (p *Proxy) look(c *call, ref string) (id, role string, answer []byte, err error) {
	var d described
	if answer, err = p.getInto(c, "/containers/"+ref+"/json", nil, &d); err != nil {
		return "", "", nil, err
	}
	if d.Config.Labels[engine.LabelNamespace] != p.cfg.Namespace || !fullID.MatchString(d.ID) {
		return "", "", nil, refuse("the container is not one of the farm %q", p.cfg.Namespace)
	}
	role = d.Config.Labels[engine.LabelRole]
	p.containers.put(d.ID, role)
	return d.ID, role, answer, nil
}

// own returns the id of the call's container, which is one of this farm and has one of these roles; without roles, any.
func (p *Proxy) own(c *call, roles ...string) (string, error) {
	return p.ownRef(c, c.args[0], roles...)
}

func (p *Proxy) ownRef(c *call, ref string, roles ...string) (string, error) {
	id, role := ref, ""
	known := false
	if fullID.MatchString(ref) { // its labels never change
		role, known = p.containers.get(ref)
	}
	if !known {
		var err error
		if id, role, _, err = p.look(c, ref); err != nil {
			return "", err
		}
	}
	if len(roles) > 0 && !slices.Contains(roles, role) {
		return "", refuse("a farm does not do this with a container of the role %q", role)
	}
	return id, nil
}

func (p *Proxy) inspectContainer(c *call) error {
	_, _, answer, err := p.look(c, c.args[0])
	if err != nil {
		return err
	}
	return c.reply(answer)
}

// useContainer makes a call without a body on a container of this farm.
func (p *Proxy) useContainer(c *call) error { return p.use(c) }

// exportImage passes the files of a helper on: those of its image.
func (p *Proxy) exportImage(c *call) error { return p.use(c, engine.RoleHelper) }

// use makes a call without a body on a container of this farm that has one of these roles; without roles, any.
func (p *Proxy) use(c *call, roles ...string) error {
	id, err := p.own(c, roles...)
	if err != nil {
		return err
	}
	return p.passAt(c, "/containers/"+id+"/"+c.at.segments[2])
}

func (p *Proxy) removeContainer(c *call) error {
	id, err := p.own(c)
	if err != nil {
		return err
	}
	return p.passAt(c, "/containers/"+id)
}

func (p *Proxy) updateContainer(c *call) error {
	body, err := p.body(c)
	if err != nil {
		return err
	}
	if body, err = p.cfg.Checker.Update(body); err != nil {
		return err
	}
	id, err := p.own(c, engine.RoleSandbox)
	if err != nil {
		return err
	}
	return p.sendJSON(c, "/containers/"+id+"/update", nil, body)
}

// createCheckpoint freezes a sandbox. The engine writes to a place of its own.
func (p *Proxy) createCheckpoint(c *call) error {
	body, err := p.body(c)
	if err != nil {
		return err
	}
	if body, err = p.cfg.Checker.Checkpoint(body); err != nil {
		return err
	}
	id, err := p.own(c, engine.RoleSandbox)
	if err != nil {
		return err
	}
	return p.sendJSON(c, "/containers/"+id+"/checkpoints", nil, body)
}

func (p *Proxy) removeCheckpoint(c *call) error {
	id, err := p.own(c, engine.RoleSandbox)
	if err != nil {
		return err
	}
	return p.passAt(c, "/containers/"+id+"/checkpoints/"+engine.CheckpointName)
}

func (p *Proxy) createContainer(c *call) error {
	body, err := p.body(c)
	if err != nil {
		return err
	}
	checked, err := p.cfg.Checker.Create(c.r.Context(), c.at.query.Get("name"), body)
	if err != nil {
		return err
	}
	if err := p.checkImage(c, checked.Image); err != nil {
		return err
	}
	if checked.Volume != "" {
		if err := p.checkVolume(c, checked.Volume); err != nil {
			return err
		}
	}
	return p.sendJSON(c, "/containers/create", c.at.query, checked.Body)
}

// Programs that fill a volume: the agent and the installer.
const (
	programsMax = 16
	programMax  = 512 << 20 // bytes of one
)

// fillVolume copies programs into the volume of a helper. The archive is made anew: the root of the volume and regular files in it, not compressed.
// (Engines have unpacked compressed archives with programs of the container.)
func (p *Proxy) fillVolume(c *call) error {
	id, err := p.own(c, engine.RoleHelper)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := repack(w, c.r.Body)
		done <- err
		_ = w.CloseWithError(err) // a pipe's writer never fails to close
	}()
	resp, err := p.send(c, http.MethodPut, "/containers/"+id+"/archive", c.at.query, r, "application/x-tar")
	_ = r.Close() // ends repack if the engine stopped reading
	packed := <-done
	var no refusal
	if errors.As(packed, &no) {
		if err == nil {
			_ = resp.Body.Close()
		}
		return no
	}
	if err != nil {
		return err
	}
	return c.pass(resp)
}

// repack copies an archive of programs.
func repack(to io.Writer, from io.Reader) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	root, err := in.Next()
	if err != nil {
		return refuse("its body is no archive of programs: %v", err)
	}
	access, ok := engine.RootAccess(root)
	if !ok {
		return refuse("its archive does not begin with the root of the agent's volume")
	}
	if err := out.WriteHeader(engine.RootHeader(access)); err != nil {
		return fmt.Errorf("pack programs: %w", err)
	}
	for n := 0; ; n++ {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
			return refuse("its body is no archive of programs: %v", err)
		case n >= programsMax:
			return refuse("its archive has more than %d programs", programsMax)
		case header.Typeflag != tar.TypeReg || !name.MatchString(path.Base(header.Name)) || header.Name != engine.ProgramHeader(path.Base(header.Name), 0, access).Name:
			return refuse("its archive has something else than programs")
		case header.Size > programMax:
			return refuse("its archive has a program of more than %d bytes", programMax)
		}
		if err := out.WriteHeader(engine.ProgramHeader(path.Base(header.Name), header.Size, access)); err != nil {
			return fmt.Errorf("pack programs: %w", err)
		}
		if _, err := io.CopyN(out, in, header.Size); err != nil {
			return fmt.Errorf("pack programs: %w", err)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("pack programs: %w", err)
	}
	return nil
}

// listContainers lists containers by their labels. Of those of other programs the farm learns that they exist, and the user id of a
// sandbox of another farm, which no other sandbox of the engine may have.
func (p *Proxy) listContainers(c *call) error {
	query, err := filtered(c.at.query, "label", "status")
	if err != nil {
		return err
	}
	return p.list(c, "/containers/json", query, "[", "]", func(raw json.RawMessage) (json.RawMessage, error) {
		var one struct {
			ID     string `json:"Id"`
			Labels map[string]string
		}
		if err := json.Unmarshal(raw, &one); err != nil || one.Labels[engine.LabelNamespace] == p.cfg.Namespace {
			return raw, err
		}
		labels := map[string]string{}
		if uid, ok := one.Labels[engine.LabelUID]; ok {
			labels[engine.LabelUID] = uid
		}
		return json.Marshal(map[string]any{"Id": one.ID, "Labels": labels})
	})
}

// filtered checks the filters of a list: only these, with at least one label. It returns the query with the filters packed anew.
func filtered(query url.Values, allowed ...string) (url.Values, error) {
	var filters map[string]map[string]bool
	if err := json.Unmarshal([]byte(query.Get("filters")), &filters); err != nil {
		return nil, refuse("its filters cannot be read")
	}
	for key, values := range filters {
		if !slices.Contains(allowed, key) {
			return nil, refuse("its filters have %q", key)
		}
		for value, on := range values {
			if value == "" || !on {
				return nil, refuse("its filter %q is empty", key)
			}
		}
	}
	if len(filters["label"]) == 0 {
		return nil, refuse("its filters have no label")
	}
	packed, err := json.Marshal(filters)
	if err != nil {
		return nil, fmt.Errorf("pack filters: %w", err)
	}
	out := url.Values{}
	for key, values := range query {
		out[key] = values
	}
	out.Set("filters", string(packed))
	return out, nil
}
