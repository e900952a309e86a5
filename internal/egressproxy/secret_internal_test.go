package egressproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// parts is a body that arrives in parts, and ends with an error.
type parts struct {
	left []string
	end  error
}

func (p *parts) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, p.end
	}
	n := copy(b, p.left[0])
	if p.left[0] = p.left[0][n:]; p.left[0] == "" {
		p.left = p.left[1:]
	}
	return n, nil
}

func (*parts) Close() error { return nil }

// pieces are what a client gets of an answer to a request with a secret, and the error at its end.
func pieces(t *testing.T, value string, body *parts) (got []string, err error) {
	t.Helper()
	l := &link{proxy: &Proxy{}, secrets: []Secret{{Secret: farm.Secret{Name: "KEY"}, Value: value}}}
	res := &http.Response{Header: http.Header{}, Body: body, Request: (&http.Request{}).WithContext(context.WithValue(t.Context(), linkKey{}, l))}
	if err := guardAnswer(res); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, plainBytes)
	for err == nil {
		var n int
		n, err = res.Body.Read(buf)
		if n > 0 {
			got = append(got, string(buf[:n]))
		}
	}
	return got, err
}

// Code that has a host repeat its own guesses learns nothing from what is withheld: the pieces of an answer are as long with a beginning of the secret
// at their ends as without.
func TestPiecesOfAnAnswerTellNothingOfTheSecret(t *testing.T) {
	t.Parallel()
	const value, other = `sk-01/23+45"67==`, `~~~~~~~~~~~~~~~~`
	for _, shape := range []string{value, `sk-01\/23+45\"67==`, `sk-01%2F23%2b45%2267%3d%3D`} {
		for n := 1; n < len(shape); n++ {
			for _, before := range []string{"", "a", strings.Repeat("a", 20), strings.Repeat("a", 500), "line\n", "line\n" + strings.Repeat("a", 500)} {
				guess := []string{before + shape[:n], "|", "\n", shape[:n], shape[:n], strings.Repeat("b", 500) + shape[:n], "|"}
				var sizes [2][]int
				for i, secret := range []string{value, other} {
					got, err := pieces(t, secret, &parts{left: slices.Clone(guess), end: io.EOF})
					if strings.Join(got, "") != strings.Join(guess, "") || !errors.Is(err, io.EOF) {
						t.Fatalf("%q is passed on as %q, %v", guess, got, err)
					}
					for _, piece := range got {
						sizes[i] = append(sizes[i], len(piece))
					}
				}
				if diff := cmp.Diff(sizes[1], sizes[0]); diff != "" {
					t.Fatalf("%q is passed on in pieces that tell a beginning of the secret (-without +with):\n%s", guess, diff)
				}
			}
		}
	}
}

// Lines are passed on as they arrive, such as those of server-sent events: no secret has a line break.
func TestLinesOfAnAnswerPassAtOnce(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789abcdef"
	events := []string{"data: 1\n\n", "data: " + value[:10] + "\n\n", ": \n", "data: 2\n\n"}
	if got, err := pieces(t, value, &parts{left: slices.Clone(events), end: io.EOF}); !slices.Equal(got, events) || !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v, want %q", got, err, events)
	}
}

// A host that sends single bytes does not have all that is withheld searched for each.
func TestSingleBytesOfAnAnswerAreGathered(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("secret", 100)
	got, err := pieces(t, value, &parts{left: strings.Split(strings.Repeat("a", 20_000), ""), end: io.EOF})
	if text := strings.Join(got, ""); len(text) != 20_000 || !errors.Is(err, io.EOF) {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	if most := 20_000 / (farm.EscapeBytes * len(value) / 2); len(got) > most {
		t.Errorf("%d pieces, at most %d are expected", len(got), most)
	}
}

// rooms is a body that arrives in single bytes. It counts the buffers that it is read into.
type rooms struct {
	parts
	last, buffers int
}

func (r *rooms) Read(b []byte) (int, error) {
	if cap(b) >= r.last { // a buffer that is used on becomes smaller
		r.buffers++
	}
	r.last = cap(b)
	return r.parts.Read(b)
}

// A host that sends single bytes had a buffer of 36 KiB and more made for each.
func TestSingleBytesOfAnAnswerShareABuffer(t *testing.T) {
	t.Parallel()
	const size = 20_000
	from := &rooms{parts: parts{left: strings.Split(strings.Repeat("a", size), ""), end: io.EOF}}
	body := &guardedBody{Closer: from, from: from, ctx: t.Context(), sought: newSearch([]Secret{{Value: strings.Repeat("secret", 100)}}), dropTrailer: func() {}}
	got, err := io.ReadAll(body)
	if string(got) != strings.Repeat("a", size) || err != nil {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if most := 1 + size/(restBytes/2); from.buffers > most {
		t.Errorf("%d buffers for %d bytes, at most %d are expected", from.buffers, size, most)
	}
}

// A host that answered with many percent signs, and a sandbox with many secrets for it, took all cores of a worker: 0.3 s for each MiB.
func TestAnswersAreSearchedOnACoreOfTheTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := budget.New(16 << 20)
		cores := testbed.TakeCores(t, memory, "loud")
		var all sync.WaitGroup
		const secrets = 16
		passed := func(tenant string, size int) *atomic.Int64 {
			var n atomic.Int64
			l := &link{}
			for range secrets {
				l.secrets = append(l.secrets, Secret{Secret: farm.Secret{Name: "KEY"}, Value: "sk-0123456789abcdef"})
			}
			body := &parts{left: []string{strings.Repeat("%", size)}, end: io.EOF}
			ctx, _ := memory.With(context.WithValue(t.Context(), linkKey{}, l), tenant, 0) // as forward does
			res := &http.Response{Header: http.Header{}, Body: body, Request: (&http.Request{}).WithContext(ctx)}
			testbed.Must(t, guardAnswer(res))
			all.Go(func() {
				got, err := io.ReadAll(res.Body)
				n.Store(int64(len(got)))
				testbed.Check(t, err == nil, "an answer ends with %v", err)
			})
			synctest.Wait()
			return &n
		}
		const free = budget.SmallBytes / secrets // of the first answer, for all its secrets
		small, large, other := passed("loud", free/2), passed("loud", 2*free), passed("quiet", 2*free)
		testbed.Check(t, small.Load() == free/2 && large.Load() == 0 && other.Load() == 2*free, "without a core %d bytes of a small answer, %d of a large one, %d for another tenant",
			small.Load(), large.Load(), other.Load())
		cores.Leave()
		all.Wait()
		testbed.Check(t, large.Load() == 2*free, "%d bytes with a core", large.Load())
	})
}

// An answer that breaks off ends without what is withheld: code can have it broken off within a secret, at the limit of its bytes.
func TestBrokenAnswerKeepsWhatIsWithheld(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789abcdef"
	got, err := pieces(t, value, &parts{left: []string{"line\n" + value[:15]}, end: io.ErrUnexpectedEOF})
	if text := strings.Join(got, ""); text != "line\n" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v", text, err)
	}
}

// What common encoders make of a secret, also inside of one another, is found, wherever the parts of an answer end.
func TestEscapedSecretIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ value, text string }{
		"PHP":              {`ghp_Zk39xQ/va+lue==`, `{"key":"ghp_Zk39xQ\/va+lue=="}`},
		"Go":               {`sk-01<23>&"45`, `{"key":"sk-01\u003c23\u003e\u0026\"45"}`},
		"PythonJSON":       {`sk-01<23>&"45`, `{"key":"sk-01<23>&\"45"}`},
		"PythonRepr":       {`sk-01'23"45`, `'sk-01\'23"45'`},
		"Unicode":          {`ghp_Zk39xQ/va+lue==`, `{"key":"ghp_Zk39xQ\u002Fva\u002blue\u003d\u003D"}`},
		"AllUnicode":       {`ghp_Zk39`, `\u0067\u0068\u0070\u005f\u005a\u006b\u0033\u0039`},
		"JavaScript":       {`ghp_Zk39xQ/va+lue==`, `'ghp_Zk39xQ\x2Fva\x2blue=='`},
		"PythonQuote":      {`ghp_Zk39xQ/va+lue==`, `?key=ghp_Zk39xQ/va%2Blue%3D%3D&x=1`},
		"DotNet":           {`ghp_Zk39xQ/va+lue==`, `?key=ghp_Zk39xQ%2fva%2blue%3d%3d&x=1`},
		"URIComponent":     {`sk-01!*'()/23`, `?key=sk-01!*'()%2F23&x=1`},
		"Form":             {`ApiKey sk-01 23/4`, `key=ApiKey+sk-01+23%2F4&x=1`},
		"JSONInJSON":       {`ghp_Zk39xQ/va"lue`, `{"error":"{\"key\":\"ghp_Zk39xQ\\\/va\\\"lue\"}"}`},
		"URLInURL":         {`ghp_Zk39xQ/va+lue==`, `?next=%2F%3Fkey%3Dghp_Zk39xQ%252Fva%252Blue%253D%253D`},
		"URLInJSON":        {`ghp_Zk39xQ/va+lue==`, `{"next":"\/?key=ghp_Zk39xQ%2Fva%2Blue\u00253D%3D"}`},
		"EscapesInTheText": {`sk-%41\u0042/23456`, `{"key":"sk-%41\\u0042\/23456"}`},
		"AsItIs":           {`sk-%41\u0042/23456`, `sk-%41\u0042/23456`},
		"Password":         {`Basic dXNlcjpnaHBfWmszOS94UQ==`, `{"password":"ghp_Zk39\/xQ"}`},
		"BehindAPercent":   {`41abcdef/`, `100%41abcdef/`},
		"BehindAnEscape":   {`ab+cdefgh`, `x%25ab%2Bcdefgh`},
	} {
		for size := 1; size <= len(c.text); size++ {
			body := &parts{end: io.EOF}
			for part := range slices.Chunk([]byte(c.text), size) {
				body.left = append(body.left, string(part))
			}
			if got, err := pieces(t, c.value, body); !errors.Is(err, errEcho) || !strings.HasPrefix(c.text, strings.Join(got, "")) {
				t.Errorf("%s: in parts of %d: %q, %v", name, size, got, err)
				break
			}
		}
		for what, header := range map[string]http.Header{"a header": {"Location": {c.text}}, "a name": {http.CanonicalHeaderKey(c.text): {"x"}}} {
			l := &link{proxy: &Proxy{}, secrets: []Secret{{Secret: farm.Secret{Name: "KEY"}, Value: c.value}}}
			res := &http.Response{Header: header, Body: &parts{}, Request: (&http.Request{}).WithContext(context.WithValue(t.Context(), linkKey{}, l))}
			if err := guardAnswer(res); !errors.Is(err, errEcho) {
				t.Errorf("%s: in %s: %v", name, what, err)
			}
		}
	}
}

// A host that sends fast to a sandbox that reads slowly fills the kernel's buffer of the connection: a few connections have a large one, until they end.
func TestFewConnectionsToHostsHaveLargeBuffers(t *testing.T) {
	t.Parallel()
	const bounded = 2 * 192 << 10
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	buffers := httpserver.NewBuffers()
	attach := func() (*hostConn, bool) {
		conn, err := net.Dial("tcp", listener.Addr().String())
		testbed.Must(t, err)
		host := (&link{proxy: &Proxy{tenant: "acme", buffers: buffers}}).attach(conn)
		t.Cleanup(func() { _ = host.Close() })
		return host, testbed.ReceiveBuffer(t, conn.(*net.TCPConn)) == bounded
	}
	first, is := attach()
	testbed.Check(t, !is, "the first connection is bounded")
	for n := 1; !is; n++ {
		testbed.Check(t, n < 1000, "no connection is bounded")
		_, is = attach()
	}
	_ = first.Close()
	_, is = attach()
	testbed.Check(t, !is, "the buffer of a connection that has ended is not given on")
}
