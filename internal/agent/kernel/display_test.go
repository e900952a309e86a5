//go:build integration

package kernel_test

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
)

const picture = `
import io
from IPython.display import Audio, Image, SVG, Video, display
from PIL import Image as Pictures
pil = Pictures.new("RGB", (32, 16))
data = io.BytesIO()
pil.save(data, "png")
data = data.getvalue()
`

// Objects return their pictures as bytes. The caller gets base64, as from Jupyter.
func TestKernelDisplaysBytes(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	agenttest.Run(t, a.Client, agenttest.Code(picture))
	const png, jpeg, pdf = "\x89PNG\r\n\x1a\n", "\xff\xd8\xff", "%PDF-1.4\xff"
	for name, c := range map[string]struct {
		code string
		want map[string]string // beginnings of the decoded values, by type
	}{
		"PIL":           {"pil", map[string]string{"image/png": png, "image/jpeg": jpeg, "text/plain": "<PIL.Image"}},
		"DisplayedPIL":  {"display(pil)", map[string]string{"image/png": png, "image/jpeg": jpeg, "text/plain": "<PIL.Image"}},
		"Image":         {"Image(data=data)", map[string]string{"image/png": png, "text/plain": "<IPython"}},
		"ImageWithSize": {"Image(data=data, width=8)", map[string]string{"image/png": png, "text/plain": "<IPython"}},
		"Audio":         {"Audio(data=[0.0, 1.0] * 9, rate=8000)", map[string]string{"text/html": "\n                <audio", "text/plain": "<IPython"}},
		"Video":         {"Video(data=b'abc', embed=True, mimetype='video/mp4')", map[string]string{"text/html": "<video", "text/plain": "<IPython"}},
		"SVG":           {"SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')", map[string]string{"image/svg+xml": "<svg", "text/plain": "<IPython"}},
		"Own":           {"class Own:\n  def _repr_png_(self): return data\n  def _repr_pdf_(self): return b'%PDF-1.4\\xff'\n  def __repr__(self): return 'Own()'\nOwn()", map[string]string{"image/png": png, "application/pdf": pdf, "text/plain": "Own()"}},
		"OwnMetadata":   {"class Own:\n  def _repr_jpeg_(self): return b'\\xff\\xd8\\xff', {'width': 3}\n  def __repr__(self): return 'Own()'\nOwn()", map[string]string{"image/jpeg": jpeg, "text/plain": "Own()"}},
		"OwnBundle":     {"display({'image/png': data, 'text/html': '<b>é</b>'.encode(), 'application/json': {'a': [1]}, 'image/svg+xml': b'<svg/>'}, raw=True)", map[string]string{"image/png": png, "text/html": "<b>é</b>", "application/json": `{"a": [1]}`, "image/svg+xml": "<svg/>"}},
	} {
		t.Run(name, func(t *testing.T) {
			ran := agenttest.Run(t, a.Client, agenttest.Code(c.code))
			if len(ran.Displays) != 1 || ran.Outcome.Error != nil {
				t.Fatalf("displays = %+v, error = %+v", ran.Displays, ran.Outcome.Error)
			}
			got := ran.Displays[0].Data
			if diff := cmp.Diff(slices.Sorted(maps.Keys(c.want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Errorf("types (-want +got):\n%s", diff)
			}
			for mime, want := range c.want {
				value := got[mime]
				if strings.HasPrefix(mime, "image/") && mime != "image/svg+xml" || mime == "application/pdf" {
					decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
					if err != nil {
						t.Errorf("%s: %v in %.60q", mime, err, value)
					}
					value = string(decoded)
				}
				if !strings.HasPrefix(value, want) {
					t.Errorf("%s = %.60q, want %q", mime, value, want)
				}
			}
		})
	}
}

// numbers lists the number and text of the displayed values.
func numbers(displays []agent.Display) map[int][]string {
	got := map[int][]string{}
	for _, d := range displays {
		got[d.Number] = append(got[d.Number], d.Data["text/plain"])
	}
	return got
}

func TestKernelNumbersDisplayedValues(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	ran := agenttest.Run(t, a.Client, agenttest.Code(`
first = display("a", display_id=True)
display("b", "c")
first.update("a2")
display("d", display_id="d")
from IPython.display import update_display
update_display("d2", display_id="d")
display("another", display_id="d")
update_display("another2", display_id="d")
"e"
`))
	want := map[int][]string{1: {"'a'", "'a2'"}, 2: {"'b'"}, 3: {"'c'"}, 4: {"'d'", "'d2'"}, 5: {"'another'", "'another2'"}, 6: {"'e'"}}
	if diff := cmp.Diff(want, numbers(ran.Displays)); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	for _, d := range ran.Displays {
		if last := d.Number == 6; d.Result != last {
			t.Errorf("value %d is the result: %v", d.Number, d.Result)
		}
	}
	// Values displayed by an earlier execution do not count for this one.
	ran = agenttest.Run(t, a.Client, agenttest.Code(`first.update("a3"); first.update("a4"); "f"`))
	if diff := cmp.Diff(map[int][]string{1: {"'a3'", "'a4'"}, 2: {"'f'"}}, numbers(ran.Displays)); diff != "" {
		t.Errorf("values of the next execution (-want +got):\n%s", diff)
	}
}
