package engineproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// emptyMax is the size of a tar without members, which is all that may be imported where images are not built: probes of the engine's
// abilities use it.
const emptyMax = 1024

// ownImage reports whether an image has a name of this farm.
func (p *Proxy) ownImage(ref string) bool { return strings.HasPrefix(ref, p.cfg.Namespace+"/") }

// lookImage asks the engine for an image. It is refused unless it is a sandbox image or has a name of this farm: others may have secrets
// of other programs. volumes says that directories of it are volumes in each of its containers.
func (p *Proxy) lookImage(c *call, ref string) (answer []byte, volumes bool, err error) {
	if !image.MatchString(ref) {
		return nil, false, refuse("%q is no name of an image", ref)
	}
	var d struct {
		Config struct {
			Labels  map[string]string
			Volumes map[string]struct{}
		}
	}
	answer, err = p.getInto(c, "/images/"+ref+"/json", nil, &d)
	if err != nil {
		return nil, false, err
	}
	if !p.cfg.Builds && !p.ownImage(ref) && d.Config.Labels[engine.LabelImage] == "" {
		return nil, false, refuse("the image has no label %s, so it is no sandbox image", engine.LabelImage)
	}
	return answer, len(d.Config.Volumes) > 0, nil
}

// checkImage refuses an image that sandboxes may not have.
func (p *Proxy) checkImage(c *call, ref string) error {
	_, volumes, err := p.lookImage(c, ref)
	if err == nil && volumes {
		return refuse("directories of the image are volumes, on which nothing is limited")
	}
	return err
}

func (p *Proxy) inspectImage(c *call) error {
	answer, _, err := p.lookImage(c, c.args[0])
	if err != nil {
		return err
	}
	return c.reply(answer)
}

func (p *Proxy) removeImage(c *call) error {
	if !p.cfg.Builds && !p.ownImage(c.args[0]) {
		return refuse("the image has no name of the farm %q", p.cfg.Namespace)
	}
	return p.passAt(c, "/images/"+c.args[0])
}

// tagImage names an image. Where images are not built, a worker only makes a sandbox image the latest one of its repository.
func (p *Proxy) tagImage(c *call) error {
	if !p.cfg.Builds {
		ref := c.args[0]
		repository, _, _ := strings.Cut(ref, "@")
		if at := strings.LastIndex(repository, ":"); at > strings.LastIndex(repository, "/") { // a colon before is that of a registry's port
			repository = repository[:at]
		}
		if c.at.query.Get("tag") != "latest" || strings.TrimPrefix(c.at.query.Get("repo"), "docker.io/") != repository {
			return refuse("images can only be tagged as the latest of their repository here (engine_proxy.builds)")
		}
		if err := p.checkImage(c, ref); err != nil {
			return err
		}
	}
	return p.passOn(c)
}

// listImages lists sandbox images.
func (p *Proxy) listImages(c *call) error {
	query, err := filtered(c.at.query, "label")
	if err != nil {
		return err
	}
	return p.list(c, "/images/json", query, "[", "]", func(raw json.RawMessage) (json.RawMessage, error) {
		var one struct{ Labels map[string]string }
		if err := json.Unmarshal(raw, &one); err != nil || one.Labels[engine.LabelImage] == "" {
			return nil, err
		}
		return raw, nil
	})
}

// createImage imports an image, or pulls one where images are built.
func (p *Proxy) createImage(c *call) error {
	imports := c.at.query.Has("fromSrc")
	switch {
	case imports == c.at.query.Has("fromImage"), imports != c.at.query.Has("repo"), imports && c.at.query.Has("tag"):
		return refuse("its query is neither that of an import nor that of a pull")
	case p.cfg.Builds && imports:
		return p.stream(c, c.r.Body)
	case p.cfg.Builds:
		if c.r.ContentLength != 0 {
			return refuse("it must have no body")
		}
		return p.passOn(c)
	case !imports:
		return refuse("images cannot be pulled here (engine_proxy.builds)")
	case !p.ownImage(c.at.query.Get("repo")):
		return refuse("the image has no name of the farm %q", p.cfg.Namespace)
	}
	data, err := p.body(c)
	if err != nil {
		return err
	}
	if len(data) > emptyMax || len(bytes.Trim(data, "\x00")) > 0 {
		return refuse("only an empty image can be imported here (engine_proxy.builds)")
	}
	return p.stream(c, bytes.NewReader(data))
}

// build passes on the caller's body, a tar of any size. The network of its steps is none, or that of a container made for it.
func (p *Proxy) build(c *call) error {
	id, shares := strings.CutPrefix(c.at.query.Get("networkmode"), engine.BuildNetwork(""))
	if shares {
		if _, err := p.ownRef(c, id, engine.RoleBuild); err != nil {
			return err
		}
	}
	return p.stream(c, c.r.Body)
}

func (p *Proxy) stream(c *call, body io.Reader) error {
	resp, err := p.send(c, http.MethodPost, c.at.path(), c.at.query, body, "application/x-tar") //nolint:bodyclose // pass closes it
	if err != nil {
		return err
	}
	return c.pass(resp)
}

// info answers with what a farm reads of the engine's description. The rest names registries, proxies with passwords, and other hosts.
func (p *Proxy) info(c *call) error {
	var all map[string]json.RawMessage
	if _, err := p.getInto(c, "/info", url.Values{}, &all); err != nil {
		return err
	}
	known := map[string]json.RawMessage{}
	for _, field := range []string{
		"ServerVersion", "OperatingSystem", "Architecture", "KernelVersion", "CgroupVersion", "CgroupDriver", "Driver", "Runtimes",
		"DefaultRuntime", "NCPU", "MemTotal", "SecurityOptions", "DiscoveredDevices", "OSType", "ExperimentalBuild",
		"MemoryLimit", "PidsLimit", "CpuCfsQuota",
	} {
		if value, ok := all[field]; ok {
			known[field] = value
		}
	}
	body, err := json.Marshal(known)
	if err != nil {
		return fmt.Errorf("pack answer: %w", err)
	}
	return c.reply(body)
}
