package engineproxy

import (
	"encoding/json"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// volume is what the proxy reads of a volume.
type volume struct {
	Driver  string
	Labels  map[string]string
	Options map[string]string
}

// lookVolume asks the engine for a volume, which is refused unless it is of this farm. Volumes have no ids: their names are the farm's
// own, and only the engine's owner can make one with other options.
func (p *Proxy) lookVolume(c *call, name string) (v volume, answer []byte, err error) {
	if answer, err = p.getInto(c, "/volumes/"+name, nil, &v); err != nil {
		return v, nil, err
	}
	if v.Labels[engine.LabelNamespace] != p.cfg.Namespace {
		return v, nil, refuse("the volume is not one of the farm %q", p.cfg.Namespace)
	}
	return v, answer, nil
}

// checkVolume refuses to mount a volume that is not the agent's: one with options may be any directory of the host.
func (p *Proxy) checkVolume(c *call, name string) error {
	v, _, err := p.lookVolume(c, name)
	if err != nil {
		return err
	}
	if v.Labels[engine.LabelRole] != engine.RoleAgent || v.Driver != "local" || len(v.Options) > 0 {
		return refuse("the volume is not the agent's")
	}
	return nil
}

func (p *Proxy) inspectVolume(c *call) error {
	_, answer, err := p.lookVolume(c, c.args[0])
	if err != nil {
		return err
	}
	return c.reply(answer)
}

func (p *Proxy) removeVolume(c *call) error {
	if _, _, err := p.lookVolume(c, c.args[0]); err != nil {
		return err
	}
	return p.passAt(c, "/volumes/"+c.args[0])
}

func (p *Proxy) createVolume(c *call) error {
	body, err := p.body(c)
	if err != nil {
		return err
	}
	if body, err = p.cfg.Checker.Volume(body); err != nil {
		return err
	}
	return p.sendJSON(c, "/volumes/create", nil, body)
}

// listVolumes lists the volumes of this farm.
func (p *Proxy) listVolumes(c *call) error {
	query, err := filtered(c.at.query, "label")
	if err != nil {
		return err
	}
	return p.list(c, "/volumes", query, `{"Volumes":[`, "]}", func(raw json.RawMessage) (json.RawMessage, error) {
		var v volume
		if err := json.Unmarshal(raw, &v); err != nil || v.Labels[engine.LabelNamespace] != p.cfg.Namespace {
			return nil, err
		}
		return raw, nil
	})
}
