//go:build browser

package ui_test

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// upload writes a file of a sandbox's workspace.
func (f *testFarm) upload(key, sandbox, name string, content []byte) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), http.MethodPut, f.url+"/v1/sandboxes/"+sandbox+"/files/"+url.PathEscape(name), bytes.NewReader(content))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		f.t.Fatalf("upload %s: %d", name, answer.StatusCode)
	}
}

// hostileSVG has a script and an attribute that run where an SVG is a document.
const hostileSVG = `<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40" onload="top.hacked=1"><script>top.hacked=1; parent.hacked=1</script><rect width="60" height="40"/></svg>`

// hostilePDF is a page that says where it is, with a script that a viewer may run.
const hostilePDF = "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R/OpenAction<</S/JavaScript/JS(app.alert\\(1\\); top.hacked=1)>>>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"

// pixel is a picture whose metadata has HTML.
const pixel = `
import struct, zlib
def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
bad = b"<script>top.hacked=1</script><img src=x onerror=top.hacked=1>"
open("meta.png", "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)) + chunk(b"tEXt", b"Title\0" + bad) + chunk(b"tEXt", b"Comment\0" + bad) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b""))
`

// TestNothingOfASandboxRuns looks at a sandbox whose names, labels, files and packages are hostile, on every page that shows them.
func TestNothingOfASandboxRuns(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	box := f.sandbox(acme, map[string]any{"name": hostile, "labels": map[string]string{"note": "<img src=x onerror=top.hacked=1>"}})
	f.execute(acme, box, pixel)
	f.execute(acme, box, "import pathlib, site\np = pathlib.Path(site.getusersitepackages()) / 'evil-1.0.dist-info'\np.mkdir(parents=True)\n(p / 'METADATA').write_text('Metadata-Version: 2.1\\nName: evil\\nVersion: 1.0<img src=x onerror=top.hacked=1>\\nSummary: <script>top.hacked=1</script>\\n')")
	parquet, err := os.ReadFile(filepath.Join("testdata", "scores.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"page.html": hostile, "vector.svg": hostileSVG, "paper.pdf": hostilePDF, "scores.parquet": string(parquet), "broken.parquet": "PAR1 is no file PAR1", "fake.png": hostile,
		"table.csv": "name," + hostile + "\n" + hostile + ",1\n",
	} {
		f.upload(acme, box, name, []byte(content))
	}
	p := openPage(t, f, "#/sandboxes")
	p.logIn(acme)
	p.sees("note=<img src=x")
	files := "#/sandboxes/" + box + "/files"
	for _, view := range []struct{ file, shown string }{
		{"page.html", `document.querySelector("pre.code")?.innerText.includes("onerror")`},
		{"vector.svg", `document.querySelector(".picture img")?.naturalWidth === 60 && document.querySelector(".picture img").src.startsWith("data:")`},
		{"paper.pdf", `document.querySelector("iframe.pdf")?.getAttribute("src").startsWith("blob:")`},
		{"scores.parquet", `document.querySelectorAll(".table tbody tr").length === 3 && document.querySelector(".table").innerText.includes("1906-12-09") && document.querySelector(".table").innerText.includes("onerror=top.hacked")`},
		{"broken.parquet", `document.body.innerText.includes("This Parquet file cannot be read")`},
		{"fake.png", `document.querySelector(".picture img")?.complete`},
		{"meta.png", `document.querySelector(".picture img")?.naturalWidth === 1`},
		{"table.csv", `document.querySelector(".table tbody td")?.innerText.includes("<script>")`},
	} {
		p.goTo(files)
		p.clickText(view.file)
		p.until(`Boolean(` + view.shown + `)`)
	}
	for _, tab := range []string{"packages", "processes", "details", "notebook", "terminal"} {
		p.goTo("#/sandboxes/" + box + "/" + tab)
		p.until(`document.querySelector(".tabs [aria-current]")?.getAttribute("href").endsWith("` + tab + `")`)
		p.until(`!document.querySelector(".loading")`)
		if tab == "packages" {
			p.sees("onerror=top.hacked")
		}
	}
	p.goTo("#/artifacts")
	p.sees("meta.png")
	p.goTo("#/jobs")
	p.sees("completed")
	p.goTo("#/sandboxes/" + box + "/notebook")
	p.clickText("Close")
	p.sees("Close the sandbox?")
	if got := value[string](p, `String(window.hacked)`); got != "undefined" {
		t.Errorf("something ran: %s", got)
	}
	for _, address := range []string{"page.html", "vector.svg", "fake.png"} { // as an address of its own, a file has no rights either
		answer := f.head(acme, "/v1/sandboxes/"+box+"/files/"+address)
		if policy := answer.Get("Content-Security-Policy"); !strings.Contains(policy, "sandbox") || strings.Contains(policy, "allow-scripts") || answer.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may run as a page: %v", address, answer)
		}
	}
}

// TestScriptsAreTheDashboardsOwn: what a sandbox answers with on the farm's origin is no script of the dashboard.
func TestScriptsAreTheDashboardsOwn(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "#/jobs")
	p.expect("evil.js")
	p.until(`Boolean(document.querySelector(".main-nav"))`)
	p.do(chromedp.Evaluate(`(() => {
		window.blocked = "";
		document.addEventListener("securitypolicyviolation", (e) => { window.blocked += " " + e.blockedURI; });
		for (const path of ["/p/token/evil.js", "/v1/sandboxes/x/ports/80/evil.js"]) document.head.append(Object.assign(document.createElement("script"), { src: path }));
	})()`, nil))
	p.until(`window.blocked.includes("/p/token/evil.js") && window.blocked.includes("/ports/80/evil.js")`)
}

func (f *testFarm) head(key, path string) http.Header {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.url+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.Header
}

// manyArtifacts answers for the list of artifacts, with 60 that are no pictures, in pages. The last one is of a job and a sandbox of its own.
const manyArtifacts = `(() => {
  const real = window.fetch;
  window.fetch = (path, options) => {
    const url = new URL(path, document.baseURI);
    if (!url.pathname.endsWith("/v1/artifacts")) return real(path, options);
    const all = Array.from({ length: 60 }, (_, i) => ({ id: "art_" + i, path: "out/file" + i + ".csv", name: "file" + i + ".csv", size: 1, content_type: "text/csv", url: "#", created_at: new Date(1.8e12 - i * 1000).toISOString(), job_id: "job_" + (i < 59 ? "0" : "1").repeat(26), sandbox_id: "sbx_" + (i < 59 ? "0" : "1").repeat(26) }));
    const found = all.filter((one) => ["job_id", "sandbox_id", "name"].every((name) => !url.searchParams.get(name) || one[name] === url.searchParams.get(name)));
    const from = Number(url.searchParams.get("cursor") || 0);
    const to = from + Number(url.searchParams.get("limit"));
    return Promise.resolve(new Response(JSON.stringify({ items: found.slice(from, to), next_cursor: to < found.length ? String(to) : null })));
  };
})()`

func TestArtifactsAreSoughtAmongAll(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(manyArtifacts).Do(ctx)
		return err
	}), chromedp.Reload())
	p.goTo("#/artifacts")
	p.sees("out/file49.csv")
	for _, word := range []string{"job_11111111111111111111111111", "sbx_11111111111111111111111111", "file59.csv"} {
		p.fill("input[type=search]", word)
		p.sees("out/file59.csv")
		p.until(`document.querySelectorAll(".artifacts li").length === 1`)
	}
	p.fill("input[type=search]", "file5.cs")
	p.sees("No artifact has exactly this name.")
	p.fill("input[type=search]", "file59")
	p.sees("None among the 50 loaded")
	p.clickText("Load more")
	p.sees("out/file59.csv")
	p.fill("input[type=search]", "")
	p.sees("out/file1.csv")
	p.choose("select", "pictures", 0)
	p.sees("No such artifacts")
}
