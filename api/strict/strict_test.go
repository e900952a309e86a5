package strict_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

type inner struct {
	N *int     `json:"n"`
	F *float64 `json:"f"`
}

type body struct {
	Code  string            `json:"code" required:"true"`
	Flag  bool              `json:"flag"`
	Name  *string           `json:"name"`
	Inner *inner            `json:"inner"`
	List  []string          `json:"list"`
	Env   map[string]string `json:"env"`
	Raw   []json.RawMessage `json:"raw"`
	At    *time.Time        `json:"at"`
}

func TestDecodeFillsEveryKind(t *testing.T) {
	t.Parallel()
	var got body
	const text = ` {"code":"\u00e9<&>","flag":true,"name":null,"inner":{"n":-3,"f":0.5},"list":["a",""],"env":{"A":"1"},"raw":[ {"k":[1]} , 5],"at":"2026-11-23T08:00:32.5+01:00"} `
	testbed.Must(t, strict.Decode([]byte(text), &got))
	n, f, at := -3, 0.5, time.Date(2026, 11, 23, 7, 0, 32, 500_000_000, time.UTC)
	want := body{
		Code: "é<&>", Flag: true, Inner: &inner{N: &n, F: &f}, List: []string{"a", ""},
		Env: map[string]string{"A": "1"}, Raw: []json.RawMessage{json.RawMessage(`{"k":[1]}`), json.RawMessage("5")}, At: &at,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ text, want string }{
		"Empty":              {"", "the body is empty"},
		"Blank":              {" \n", "the body is empty"},
		"CutOff":             {`{"code": `, "ends too early"},
		"Trailing":           {`{"code":"1"} x`, "not JSON"},
		"TwoValues":          {`{"code":"1"}{}`, "not JSON"},
		"TrailingComma":      {`{"code":"1",}`, "not JSON"},
		"NotUTF8":            {"{\"code\":\"\xff\"}", "not UTF-8"},
		"Array":              {`["x"]`, "the body must be an object, not an array"},
		"Null":               {`null`, "the body must be an object, not null"},
		"String":             {`"x"`, "the body must be an object, not a string"},
		"Missing":            {`{}`, `"code" is missing`},
		"NullIsMissing":      {`{"code":null}`, `"code" is missing`},
		"NullThenValue":      {`{"code":null,"code":"x"}`, `"code" is given twice`},
		"Twice":              {`{"code":"a","code":"b"}`, `"code" is given twice`},
		"TwiceInMap":         {`{"code":"a","env":{"A":"1","A":"2"}}`, `"env.A" is given twice`},
		"Unknown":            {`{"code":"a","cod":"b"}`, `"cod" is not a known field; known are code, flag`},
		"OtherCase":          {`{"Code":"a"}`, `"Code" is not a known field`},
		"NumberForString":    {`{"code":5}`, `"code" must be a string, not a number`},
		"ListForString":      {`{"code":["1"]}`, `"code" must be a string, not an array`},
		"StringForBool":      {`{"code":"a","flag":"yes"}`, `"flag" must be true or false, not a string`},
		"StringForInt":       {`{"code":"a","inner":{"n":"5"}}`, `"inner.n" must be a whole number, not a string`},
		"FractionForInt":     {`{"code":"a","inner":{"n":1.5}}`, `"inner.n" must be a whole number, not 1.5`},
		"ExponentForInt":     {`{"code":"a","inner":{"n":1e9}}`, `"inner.n" must be a whole number`},
		"HugeInt":            {`{"code":"a","inner":{"n":99999999999999999999}}`, `"inner.n" is out of range`},
		"HugeFloat":          {`{"code":"a","inner":{"f":1e999}}`, `"inner.f" is out of range`},
		"NumberForTime":      {`{"code":"a","at":5}`, `"at" must be a time, not a number`},
		"ObjectForTime":      {`{"code":"a","at":{}}`, `"at" must be a time, not an object`},
		"NoTime":             {`{"code":"a","at":"today"}`, `"at" must be a time such as 2026-11-23T07:00:32Z, not "today"`},
		"NoDayOfTheMonth":    {`{"code":"a","at":"2026-02-30T00:00:00Z"}`, `"at" must be a time such as`},
		"ListForMap":         {`{"code":"a","env":["A=1"]}`, `"env" must be an object, not an array`},
		"NumberInMap":        {`{"code":"a","env":{"A":1}}`, `"env.A" must be a string, not a number`},
		"NullInMap":          {`{"code":"a","env":{"A":null}}`, `"env.A" must be a string, not null`},
		"NumberInList":       {`{"code":"a","list":["a",5]}`, `"list[1]" must be a string, not a number`},
		"NullInList":         {`{"code":"a","list":[null]}`, `"list[0]" must be a string, not null`},
		"DeepRaw":            {`{"code":"a","raw":[` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `]}`, "nested too deeply"},
		"DeeperThanTheParse": {`{"code":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, "not JSON"},
		"LongUnknown":        {`{"` + strings.Repeat("k", 500) + `":1}`, "…"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got body
			err := strict.Decode([]byte(test.text), &got)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q in it", err, test.want)
			}
			if _, ok := errors.AsType[*strict.Error](err); !ok || farm.CodeOf(err) != farm.CodeInvalid {
				t.Fatalf("error %T must be a *strict.Error that counts as invalid", err)
			}
			if strings.Contains(err.Error(), "reflect") || strings.Contains(err.Error(), "strict_test") || len(err.Error()) > 400 {
				t.Fatalf("not a sentence for callers: %s", err)
			}
		})
	}
}

func TestDecodeReportsEveryProblem(t *testing.T) {
	t.Parallel()
	var got body
	err := strict.Decode([]byte(`{"cod":[{"x":1}],"flag":3,"inner":{"n":"5","f":0.5,"a/b~":1},"list":["a",5],"env":{"A":1,"B":"2"},"flag":true}`), &got)
	fields, rest := strict.Fields(err)
	testbed.Must(t, rest)
	want := []farm.FieldError{
		{Pointer: "/cod", Detail: `"cod" is not a known field; known are code, flag, name, inner, list, env, raw, at`},
		{Pointer: "/flag", Detail: `"flag" must be true or false, not a number`},
		{Pointer: "/inner/n", Detail: `"inner.n" must be a whole number, not a string`},
		{Pointer: "/inner/a~1b~0", Detail: `"inner.a/b~" is not a known field; known are n, f`},
		{Pointer: "/list/1", Detail: `"list[1]" must be a string, not a number`},
		{Pointer: "/env/A", Detail: `"env.A" must be a string, not a number`},
		{Pointer: "/flag", Detail: `"flag" is given twice`},
		{Pointer: "/code", Detail: `"code" is missing`},
	}
	testbed.Diff(t, "", want, fields)
	if got.Inner == nil || *got.Inner.F != 0.5 || got.Env["B"] != "2" {
		t.Errorf("valid fields are missing: %+v", got)
	}
	if text := err.Error(); !strings.Contains(text, `"cod" is not`) || !strings.Contains(text, "and 3 more") {
		t.Errorf("the sentence is %s", text)
	}
}

func TestDecodeBoundsTheProblems(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{strict.MaxProblems - 1: strict.MaxProblems - 1, strict.MaxProblems: strict.MaxProblems, 100_000: strict.MaxProblems} {
		var got body
		fields, err := strict.Fields(strict.Decode([]byte(`{"code":"x","list":[`+strings.Repeat("1,", n-1)+`1]}`), &got))
		if err != nil || len(fields) != want {
			t.Errorf("%d problems: %d are reported, %v", n, len(fields), err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"code":"x"}`, `{"code":"x","inner":{"n":1,"f":2.5},"list":[],"env":{},"raw":[null,{"a":[]}]}`, `null`, `[[`, "{\"\xff\":1}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got, plain body
		if err := strict.Decode(data, &got); err != nil {
			if _, ok := errors.AsType[*strict.Error](err); !ok {
				t.Fatalf("error is %T", err)
			}
			return
		}
		// encoding/json decodes every accepted body to the same value.
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", err)
		}
		plain.Raw, got.Raw = nil, nil
		if diff := cmp.Diff(plain, got); diff != "" {
			t.Fatal(diff)
		}
	})
}
