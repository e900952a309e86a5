//go:build integration

package kernel_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// dataOf runs code that shows one value as data, and returns its JSON by type.
func dataOf(t *testing.T, a *agenttest.Agent, code string) map[string]any {
	t.Helper()
	spec := agenttest.Code(code)
	spec.Data = true
	ran := agenttest.Run(t, a.Client, spec)
	if len(ran.Displays) != 1 || ran.Outcome.Error != nil {
		t.Fatalf("%d values, error %+v, stderr %s", len(ran.Displays), ran.Outcome.Error, ran.Stderr)
	}
	got := map[string]any{}
	for mime, text := range ran.Displays[0].Data {
		var value any
		if strings.HasSuffix(mime, "json") || strings.HasPrefix(mime, "e2b/") {
			err := json.Unmarshal([]byte(text), &value)
			testbed.Require(t, err == nil, "%s: %v in %s", mime, err, text)
		}
		got[mime] = value
	}
	return got
}

const plots = `
import datetime, numpy as np, matplotlib.pyplot as plt
`

func TestKernelShowsCharts(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	agenttest.Run(t, a.Client, agenttest.Code(plots))
	for name, c := range map[string]struct{ code, want string }{
		"Bars": {
			"plt.bar(['A', 'B'], [1, 2], label='sold'); plt.xlabel('who'); plt.ylabel('n (pieces)'); plt.title('t')",
			`{"type":"bar","title":"t","x_label":"who","y_label":"n (pieces)","x_unit":null,"y_unit":"pieces","elements":[{"label":"A","group":"sold","value":1},{"label":"B","group":"sold","value":2}]}`,
		},
		"EqualBars": {
			"plt.bar(['A', 'B'], [2, 2]); plt.xlabel('who')",
			`{"type":"bar","title":null,"x_label":"who","y_label":null,"x_unit":null,"y_unit":null,"elements":[{"label":"A","group":"Group 0","value":2},{"label":"B","group":"Group 0","value":2}]}`,
		},
		"LevelBars": {
			"plt.barh(['A', 'B'], [1, 2]); plt.xlabel('n'); plt.ylabel('who')",
			`{"type":"bar","title":null,"x_label":"who","y_label":"n","x_unit":null,"y_unit":null,"elements":[{"label":"A","group":"Group 0","value":1},{"label":"B","group":"Group 0","value":2}]}`,
		},
		"Pie": {
			"plt.pie([90, 10], labels=['No', 'Yes'], startangle=90)",
			`{"type":"pie","title":null,"elements":[{"label":"No","angle":324,"radius":1},{"label":"Yes","angle":36,"radius":1}]}`,
		},
		"Boxes": {
			"plt.boxplot([[85, 90, 78, 92, 88], [95, 89, 76, 91, 84, 87]], tick_labels=['A', 'B'], patch_artist=True)",
			`{"type":"box_and_whisker","title":null,"x_label":null,"y_label":null,"x_unit":null,"y_unit":null,"elements":[{"label":"A","min":78,"first_quartile":85,"median":88,"third_quartile":90,"max":92,"outliers":[]},{"label":"B","min":84,"first_quartile":84.75,"median":88,"third_quartile":90.5,"max":95,"outliers":[76]}]}`,
		},
		"LevelBoxes": {
			"plt.boxplot([[1, 2, 3, 4, 50, 60]], orientation='horizontal', tick_labels=['A'], patch_artist=True)",
			`{"type":"box_and_whisker","title":null,"x_label":null,"y_label":null,"x_unit":null,"y_unit":null,"elements":[{"label":"A","min":1,"first_quartile":2.25,"median":3.5,"third_quartile":38.5,"max":60,"outliers":[]}]}`,
		},
		"Unknown": {
			"plt.gca().add_artist(plt.Circle((0, 0), 1)); plt.title('circle')",
			`{"type":"unknown","title":"circle","elements":[]}`,
		},
		"Picture": {"plt.imshow(np.eye(3))", `{"type":"unknown","title":null,"elements":[]}`},
		"Several": {
			"figure, axes = plt.subplots(1, 2); figure.suptitle('two'); axes[0].pie([1]); axes[1].imshow(np.eye(2))",
			`{"type":"superchart","title":"two","elements":[{"type":"pie","title":null,"elements":[{"label":"","angle":360,"radius":1}]},{"type":"unknown","title":null,"elements":[]}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var want any
			testbed.Must(t, json.Unmarshal([]byte(c.want), &want))
			got := dataOf(t, a, "plt.close('all')\n"+c.code+"\nplt.show()")
			testbed.Diff(t, "chart", want, got["e2b/chart"])
			if _, ok := got["image/png"]; !ok {
				t.Errorf("types %v", slices.Sorted(maps.Keys(got)))
			}
		})
	}
}

func TestKernelShowsLinesAndPoints(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	agenttest.Run(t, a.Client, agenttest.Code(plots))
	for name, c := range map[string]struct {
		code, kind string
		x, y       string // scales
		points     string // of all elements
	}{
		"Lines":      {"plt.plot([1, 2], [3, 4.5]); plt.plot([1], [float('nan')], label='b'); plt.grid()", "line", "linear", "linear", `[["Line 0",[[1,3],[2,4.5]]],["b",[[1,null]]]]`},
		"Dates":      {"plt.plot([datetime.date(2023, 9, 1), datetime.datetime(2023, 9, 2, 3)], [1, 2], label='d')", "line", "datetime", "linear", `[["d",[["2023-09-01",1],["2023-09-02T03:00:00",2]]]]`},
		"NumpyDates": {"plt.plot(np.array(['2023-09-01', '2023-09-02'], 'datetime64[D]'), [1, 2], label='d')", "line", "datetime", "linear", `[["d",[["2023-09-01T00:00:00",1],["2023-09-02T00:00:00",2]]]]`},
		"Categories": {"plt.plot([1, 2], ['A', 'B'], label='c')", "line", "linear", "categorical", `[["c",[[1,"A"],[2,"B"]]]]`},
		"Log":        {"plt.plot([1, 2], [10, 100], label='l'); plt.yscale('log')", "line", "linear", "log", `[["l",[[1,10],[2,100]]]]`},
		"Points":     {"plt.scatter([1, 2], [3, 4], label='s'); plt.axhline(3)", "scatter", "linear", "linear", `[["s",[[1,3],[2,4]]]]`},
	} {
		t.Run(name, func(t *testing.T) {
			chart, ok := dataOf(t, a, "plt.close('all')\n"+c.code+"\nplt.show()")["e2b/chart"].(map[string]any)
			testbed.Require(t, ok && chart["type"] == c.kind && chart["x_scale"] == c.x && chart["y_scale"] == c.y, "chart %v", chart)
			for _, name := range []string{"x", "y"} {
				ticks, labels := chart[name+"_ticks"].([]any), chart[name+"_tick_labels"].([]any)
				testbed.Check(t, len(ticks) != 0 && len(ticks) == len(labels), "ticks %v, labels %v", ticks, labels)
				for _, tick := range ticks {
					_, text := tick.(string)
					testbed.Check(t, text == (chart[name+"_scale"] == "datetime"), "%s tick %v", name, tick)
				}
			}
			var want, got any
			testbed.Must(t, json.Unmarshal([]byte(c.points), &want))
			list := []any{}
			for _, e := range chart["elements"].([]any) {
				element := e.(map[string]any)
				list = append(list, []any{element["label"], element["points"]})
			}
			got = list
			testbed.Diff(t, "points", want, got)
		})
	}
}

// Figures without a chart are shown as before: blank ones, those beyond a limit, and those in which code has put what nobody can read.
func TestKernelLeavesChartsOut(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	agenttest.Run(t, a.Client, agenttest.Code(plots+`
def show(points):
    figure, ax = plt.subplots()
    ax.set_xticks([]); ax.set_yticks([])
    ax.plot(range(points), range(points))
    plt.show()
`))
	for name, c := range map[string]struct {
		code string
		want bool
	}{
		"Blank":      {"plt.subplots(); plt.show()", false},
		"BelowLimit": {"show(9_999)", true},
		"AtLimit":    {"show(10_000)", true},
		"AboveLimit": {"show(10_001)", false},
		"Axes31":     {"f, axes = plt.subplots(1, 31); axes[0].plot([1]); plt.show()", true},
		"Axes32":     {"f, axes = plt.subplots(1, 32); axes[0].plot([1]); plt.show()", true},
		"Axes33":     {"f, axes = plt.subplots(1, 33); axes[0].plot([1]); plt.show()", false},
		"Hostile":    {"line, = plt.plot([1, 2]); line.get_label = lambda: 1 / 0; plt.show()", false},
		"Endless":    {"line, = plt.plot([1, 2]); line.get_xdata = lambda orig=True: iter(int, 1); plt.show()", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := dataOf(t, a, "plt.close('all')\n"+c.code)
			if _, ok := got["e2b/chart"]; ok != c.want {
				t.Errorf("types %v", slices.Sorted(maps.Keys(got)))
			}
			if _, ok := got["image/png"]; !ok && name != "Hostile" && name != "Endless" {
				t.Errorf("types %v", slices.Sorted(maps.Keys(got)))
			}
		})
	}
}

func TestKernelShowsValuesAsData(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	agenttest.Run(t, a.Client, agenttest.Code("import pandas as pd, numpy as np\nclass Own:\n  def _repr_e2b_chart_(self): return {'type': 'own'}\n"))
	for name, c := range map[string]struct{ code, mime, want string }{
		"Table":       {"pd.DataFrame({'a': [1, 2], 7: ['x', None], 'd': pd.to_datetime(['2023-09-01', '2023-09-02'])})", "e2b/data", `{"a":[1,2],"7":["x",null],"d":["2023-09-01T00:00:00","2023-09-02T00:00:00"]}`},
		"TableAt":     {"pd.DataFrame({'a': range(20_000)})", "e2b/data", ""},
		"TableAbove":  {"pd.DataFrame({'a': range(20_001)})", "e2b/data", "none"},
		"StrangeCell": {"pd.DataFrame({'a': [object()]})", "e2b/data", "none"},
		"List":        {"[1, 'a', None, True, {'b': (1.5, float('inf'))}, np.int64(3), np.ones(2)]", "application/json", `[1,"a",null,true,{"b":[1.5,null]},3,[1,1]]`},
		"ListAt":      {"[0] * 19_999", "application/json", ""},
		"ListAbove":   {"[0] * 20_000", "application/json", "none"},
		"Cycle":       {"l = []; l.append(l); l", "application/json", "none"},
		"Strange":     {"[object()]", "application/json", "none"},
		"Own":         {"Own()", "e2b/chart", `{"type":"own"}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := dataOf(t, a, c.code)[c.mime]
			testbed.Require(t, ok == (c.want != "none"), "%s is there: %v", c.mime, ok)
			var want any
			if c.want == "none" || c.want == "" {
				return
			}
			testbed.Must(t, json.Unmarshal([]byte(c.want), &want))
			testbed.Diff(t, "data", want, got)
		})
	}
}

// Data is shown only to those who ask for it, also after another one did, and what code has registered itself stays.
func TestKernelShowsDataWhenAsked(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	types := func(code string, data bool) []string {
		t.Helper()
		spec := agenttest.Code(code)
		spec.Data = data
		ran := agenttest.Run(t, a.Client, spec)
		testbed.Require(t, len(ran.Displays) == 1, "%d values, error %+v", len(ran.Displays), ran.Outcome.Error)
		return slices.Sorted(maps.Keys(ran.Displays[0].Data))
	}
	plain, asData := []string{"text/plain"}, []string{"application/json", "text/plain"}
	for i, data := range []bool{false, true, false, true} {
		want := plain
		if data {
			want = asData
		}
		testbed.Diff(t, fmt.Sprintf("execution %d", i), want, types("[1]", data))
	}
	agenttest.Run(t, a.Client, agenttest.Code("get_ipython().display_formatter.formatters['application/json'].for_type(list, lambda l: {'mine': True})"))
	for _, data := range []bool{false, true, false} {
		testbed.Diff(t, "with a printer of the code", asData, types("[1]", data))
	}
	ran := agenttest.Run(t, a.Client, agenttest.Code("import sys; print('matplotlib' in sys.modules, 'pandas' in sys.modules)"))
	testbed.Diff(t, "imported", "False False\n", ran.Stdout)
}

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
			testbed.Require(t, len(ran.Displays) == 1 && ran.Outcome.Error == nil, "displays = %+v, error = %+v", ran.Displays, ran.Outcome.Error)
			got := ran.Displays[0].Data
			testbed.Diff(t, "types", slices.Sorted(maps.Keys(c.want)), slices.Sorted(maps.Keys(got)))
			for mime, want := range c.want {
				value := got[mime]
				if strings.HasPrefix(mime, "image/") && mime != "image/svg+xml" || mime == "application/pdf" {
					decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
					testbed.Check(t, err == nil, "%s: %v in %.60q", mime, err, value)
					value = string(decoded)
				}
				testbed.Check(t, strings.HasPrefix(value, want), "%s = %.60q, want %q", mime, value, want)
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
	testbed.Diff(t, "values", want, numbers(ran.Displays))
	for _, d := range ran.Displays {
		testbed.Diff(t, fmt.Sprintf("value %d is the result", d.Number), d.Number == 6, d.Result)
	}
	// Values displayed by an earlier execution do not count for this one.
	ran = agenttest.Run(t, a.Client, agenttest.Code(`first.update("a3"); first.update("a4"); "f"`))
	testbed.Diff(t, "values of the next execution", map[int][]string{1: {"'a3'", "'a4'"}, 2: {"'f'"}}, numbers(ran.Displays))
}
