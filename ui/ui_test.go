package ui_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/ui"
)

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// scripts are our own modules.
func scripts(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"js/*.js", "js/views/*.js", "js/parts/*.js", "js/words/*.js"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	if len(all) < 15 {
		t.Fatalf("only %d modules were found", len(all))
	}
	return all
}

var entry = regexp.MustCompile(`(?m)^  "([^"]+)": "(.+)",$`)

// words are the keys of a dictionary with the names that each sentence takes.
func words(t *testing.T, language string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, line := range entry.FindAllStringSubmatch(read(t, "js/words/"+language+".js"), -1) {
		names := regexp.MustCompile(`\{\w+\}`).FindAllString(line[2], -1)
		slices.Sort(names)
		out[line[1]] = strings.Join(names, " ")
	}
	return out
}

func TestBothLanguagesHaveTheSameWords(t *testing.T) {
	t.Parallel()
	en, zh := words(t, "en"), words(t, "zh")
	for key, names := range en {
		if other, ok := zh[key]; !ok || other != names {
			t.Errorf("%s: Chinese has %q (%v), English %q", key, other, ok, names)
		}
	}
	for key := range zh {
		if _, ok := en[key]; !ok {
			t.Errorf("%s is Chinese only", key)
		}
	}
	used := regexp.MustCompile("\\bt\\(\"([^\"]+)\"|\"((?:keys|nav|play)\\.[a-z]+)\"")
	seen := 0
	for _, file := range scripts(t) {
		for _, match := range used.FindAllStringSubmatch(read(t, file), -1) {
			seen++
			if key := match[1] + match[2]; en[key] == "" && !hasKey(en, key) {
				t.Errorf("%s uses %q, which no dictionary has", file, key)
			}
		}
	}
	if len(en) < 100 || seen < 80 {
		t.Errorf("%d words and %d uses were found", len(en), seen)
	}
}

func hasKey(words map[string]string, key string) bool { _, ok := words[key]; return ok }

// TestNothingIsHTML looks for the ways by which a text becomes HTML or code.
func TestNothingIsHTML(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function|javascript:`)
	for _, file := range scripts(t) {
		if found := forbidden.FindString(read(t, file)); found != "" {
			t.Errorf("%s has %s", file, found)
		}
	}
	if inline := regexp.MustCompile(`<script>|\son\w+=|<style>|style=`).FindString(read(t, "index.html") + read(t, "terminal.html")); inline != "" {
		t.Errorf("a page has inline %s", inline)
	}
}

func TestNothingComesFromElsewhere(t *testing.T) {
	t.Parallel()
	outside := regexp.MustCompile(`(?:src|href|from|import\()\s*[=(]?\s*["'](https?:)?//`)
	for _, file := range append(scripts(t), "index.html", "frame.html", "terminal.html", "app.css", "views.css") {
		if found := outside.FindString(read(t, file)); found != "" {
			t.Errorf("%s loads %s", file, found)
		}
	}
}

// firstPageBytes is what the first page may weigh, compressed: all that a browser loads before it shows the playground.
const firstPageBytes = 200 << 10

func TestTheFirstPageIsSmall(t *testing.T) {
	t.Parallel()
	files, err := ui.New()
	if err != nil {
		t.Fatal(err)
	}
	loaded := map[string]int{}
	load := func(name string) *ui.File {
		file, _, ok := files.Find(name)
		if !ok {
			t.Fatalf("%s is loaded, and is not there", name)
		}
		loaded[name] = len(file.Gzip())
		return file
	}
	index := load(ui.Index)
	linked := regexp.MustCompile(`(?:src|href)="ui/(v-[^/"]+)/([^"]+)"`).FindAllStringSubmatch(string(index.Content), -1)
	for _, match := range linked {
		if _, lasting, _ := files.Find(match[1] + "/" + match[2]); !lasting {
			t.Errorf("%s is not linked by the version of the files", match[2])
		}
		load(match[2])
	}
	for _, name := range files.Start() {
		load(name)
		if !strings.Contains(string(index.Content), `<link rel="modulepreload" href="ui/`+linked[0][1]+"/"+name+`">`) {
			t.Errorf("the page does not name %s", name)
		}
	}
	if strings.Contains(strings.ReplaceAll(string(index.Content), `"ui/v-`, ""), `"ui/`) {
		t.Error("the page has a link without the version")
	}
	total := 0
	for _, size := range loaded {
		total += size
	}
	t.Logf("the first page is %d files of %d bytes, compressed", len(loaded), total)
	if total > firstPageBytes || loaded["js/lib/preact.js"] == 0 || loaded["js/lib/hooks.js"] == 0 || loaded["js/views/playground.js"] == 0 {
		t.Errorf("the first page has %d bytes: %v", total, loaded)
	}
}

func TestAVersionLastsOnlyForItsFiles(t *testing.T) {
	t.Parallel()
	files, err := ui.New()
	if err != nil {
		t.Fatal(err)
	}
	for path, ok := range map[string]bool{"js/main.js": true, "v-another/js/main.js": true, "v-another/nothing.js": false, "v-": false, "v-x/v-x/js/main.js": false, "js/lib/LICENSE.htm.txt": false} {
		if _, lasting, found := files.Find(path); found != ok || lasting {
			t.Errorf("%s: found %v, lasting %v", path, found, lasting)
		}
	}
}

func TestLibrariesHaveTheirLicences(t *testing.T) {
	t.Parallel()
	libraries, err := filepath.Glob("js/lib/*.js")
	if err != nil || len(libraries) != 5 {
		t.Fatalf("libraries: %v %v", libraries, err)
	}
	for _, name := range []string{"preact", "htm", "xterm", "addon-fit", "hyparquet"} {
		if len(read(t, "js/lib/LICENSE."+name+".txt")) < 500 {
			t.Errorf("%s has no licence", name)
		}
	}
}
