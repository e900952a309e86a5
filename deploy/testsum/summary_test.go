package main

import (
	"strings"
	"testing"
	"time"
)

const (
	passA   = `{"Action":"run","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}` + "\n" + `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}` + "\n"
	failB   = `{"Action":"output","Package":"p","Test":"TestB","Output":"b_test.go:3: it broke\n"}` + "\n" + `{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0.2}` + "\n"
	skipC   = `{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: no server\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"TestC"}` + "\n"
	passPkg = `{"Action":"pass","Package":"p","Elapsed":7.5}` + "\n"
	failPkg = `{"Action":"output","Package":"p","Output":"panic: outside a test\n"}` + "\n" + `{"Action":"fail","Package":"p","Elapsed":1}` + "\n"
	hangs   = `{"Action":"run","Package":"p","Test":"TestD"}` + "\n" + `{"Action":"output","Package":"p","Test":"TestD","Output":"panic: test timed out\n"}` + "\n"
	noTests = `{"Action":"output","Package":"q","Output":"? q [no test files]\n"}` + "\n" + `{"Action":"skip","Package":"q"}` + "\n"
	build   = `{"ImportPath":"p","Action":"build-output","Output":"x.go:1: undefined: y\n"}` + "\n" + `{"Action":"fail","Package":"p","Elapsed":0}` + "\n"
)

func TestRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in     string
		noSkip bool
		code   int
		want   []string
		not    []string
	}{
		"AllPass": {
			passA + passPkg + noTests, true, 0,
			[]string{"PASS: 1 passed, 0 failed, 0 skipped in 1 packages", "slowest: p 8s"},
			[]string{"chatter"},
		},
		"AFailureIsShown": {
			passA + failB + failPkg, false, 1,
			[]string{"FAIL: 1 passed, 1 failed", "p TestB\nb_test.go:3: it broke", "panic: outside a test"},
			[]string{"chatter"},
		},
		"APackageFailsAlone": {passA + failPkg, false, 1, []string{"1 passed, 1 failed", "panic: outside a test"}, nil},
		"ATestDoesNotEnd": {
			passA + hangs + `{"Action":"fail","Package":"p","Elapsed":1200}` + "\n", false, 1,
			[]string{"FAIL: 1 passed, 1 failed", "p TestD\npanic: test timed out"},
			nil,
		},
		"BuildFails":          {build, false, 1, []string{"undefined: y", "0 passed, 1 failed"}, nil},
		"SkipIsAllowed":       {passA + skipC + passPkg, false, 0, []string{"skipped: p TestC (no server)", "PASS: 1 passed, 0 failed, 1 skipped"}, nil},
		"SkipIsNotAllowed":    {passA + skipC + passPkg, true, 1, []string{"skipped: p TestC (no server)", "FAIL: 1 passed, 0 failed, 1 skipped"}, nil},
		"NothingWasTested":    {noTests, false, 1, []string{"FAIL: 0 passed"}, nil},
		"GoItselfComplained":  {"go: no such module\n" + passA + passPkg, false, 1, []string{"go: no such module", "FAIL"}, nil},
		"TheRunWasCut":        {`{"Action":"start","Package":"p"}` + "\n" + passA, false, 1, []string{"p\nthe test run was cut"}, nil},
		"LastLineWithoutFeed": {passA + strings.TrimSuffix(passPkg, "\n"), false, 0, []string{"PASS: 1 passed"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			if code := run(strings.NewReader(c.in), &out, c.noSkip, time.Now); code != c.code {
				t.Errorf("exit code %d, want %d:\n%s", code, c.code, out.String())
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, out.String())
				}
			}
			for _, not := range c.not {
				if strings.Contains(out.String(), not) {
					t.Errorf("output has %q:\n%s", not, out.String())
				}
			}
		})
	}
}
