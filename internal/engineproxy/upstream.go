package engineproxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// answerMax bounds an answer of the engine that the proxy reads whole: a description.
const answerMax = 4 << 20

// headersKept are what the engine's client reads of an answer.
func headersKept() []string {
	return []string{"Content-Type", "Api-Version", "Docker-Experimental", "Ostype", "Builder-Version"}
}

// request makes a request to the engine.
func (c *call) request(method, path string, query url.Values, body io.Reader, contentType string) (*http.Request, error) {
	target := url.URL{Scheme: "http", Host: "engine", Path: c.at.version + path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(c.r.Context(), method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return r, nil
}

// send makes a call to the engine. The caller closes the body of the answer.
func (p *Proxy) send(c *call, method, path string, query url.Values, body io.Reader, contentType string) (*http.Response, error) {
	r, err := c.request(method, path, query, body, contentType)
	if err != nil {
		return nil, err
	}
	resp, err := p.transport.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("call engine: %w", err)
	}
	return resp, nil
}

// sendJSON makes a call with a JSON body and passes its answer on.
func (p *Proxy) sendJSON(c *call, path string, query url.Values, body []byte) error {
	resp, err := p.send(c, http.MethodPost, path, query, bytes.NewReader(body), "application/json") //nolint:bodyclose // pass closes it
	if err != nil {
		return err
	}
	return c.pass(resp)
}

// passOn makes the caller's call without a body.
func (p *Proxy) passOn(c *call) error { return p.passAt(c, c.at.path()) }

// passAt makes the caller's call at another path, without a body.
func (p *Proxy) passAt(c *call, path string) error {
	resp, err := p.send(c, c.r.Method, path, c.at.query, nil, "") //nolint:bodyclose // pass closes it
	if err != nil {
		return err
	}
	return c.pass(resp)
}

// pass passes an answer on as it comes.
func (c *call) pass(resp *http.Response) error {
	defer func() { _ = resp.Body.Close() }()
	for _, key := range headersKept() {
		if value := resp.Header.Get(key); value != "" {
			c.w.Header().Set(key, value)
		}
	}
	c.w.WriteHeader(resp.StatusCode)
	_, err := io.Copy(flusher{c.w}, resp.Body)
	if err != nil { // the status is sent: only an aborted answer tells the caller that something is missing
		panic(http.ErrAbortHandler)
	}
	return nil
}

// flusher sends every write at once: progress of builds comes in lines.
type flusher struct{ w http.ResponseWriter }

func (f flusher) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// get asks the engine for a JSON document; an answer that is no success is an engineAnswer.
func (p *Proxy) get(c *call, path string, query url.Values) ([]byte, error) {
	resp, err := p.send(c, http.MethodGet, path, query, nil, "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return read(resp)
}

// read reads an answer whole; one that is no success is an engineAnswer.
func read(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerMax+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the engine's answer: %w", err)
	case len(body) > answerMax:
		return nil, fmt.Errorf("the engine's answer has more than %d bytes", answerMax)
	case resp.StatusCode != http.StatusOK:
		var problem struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(body, &problem) // without a message the status says what it is
		return nil, engineAnswer{resp.StatusCode, problem.Message}
	}
	return body, nil
}

// getInto is get, decoded.
func (p *Proxy) getInto(c *call, path string, query url.Values, into any) ([]byte, error) {
	body, err := p.get(c, path, query)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return nil, fmt.Errorf("decode the engine's answer: %w", err)
	}
	return body, nil
}

// list passes on the first list of an answer of the engine, between begin and end. It may be long, so the proxy holds one element at a time: what pick
// makes of it; nil: it is left out.
func (p *Proxy) list(c *call, path string, query url.Values, begin, end string, pick func(json.RawMessage) (json.RawMessage, error)) error {
	resp, err := p.send(c, http.MethodGet, path, query, nil, "")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		_, err := read(resp)
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	to := bufio.NewWriter(c.w)
	_, _ = to.WriteString(begin) // Flush returns the error
	separator := ""
	err = each(json.NewDecoder(resp.Body), func(raw json.RawMessage) error {
		picked, err := pick(raw)
		if err != nil || picked == nil {
			return err
		}
		_, _ = to.WriteString(separator)
		separator = ","
		_, err = to.Write(picked)
		return err
	})
	if err == nil {
		_, _ = to.WriteString(end)
		err = to.Flush()
	}
	if err != nil { // the status may be sent: only an aborted answer tells the caller that something is missing
		panic(http.ErrAbortHandler)
	}
	return nil
}

// each calls f for each element of the first list of a JSON document; one without a list has none.
func each(from *json.Decoder, f func(json.RawMessage) error) error {
	for token := json.Token(nil); token != json.Delim('['); {
		var err error
		if token, err = from.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("decode the engine's answer: %w", err)
		}
	}
	for from.More() {
		var raw json.RawMessage
		if err := from.Decode(&raw); err != nil {
			return fmt.Errorf("decode the engine's answer: %w", err)
		}
		if err := f(raw); err != nil {
			return err
		}
	}
	if _, err := from.Token(); err != nil {
		return fmt.Errorf("decode the engine's answer: %w", err)
	}
	return nil
}

// reply answers with JSON.
func (c *call) reply(body []byte) error {
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = c.w.Write(body) // the caller may be gone
	return nil
}

// body reads the caller's body, which is to be checked.
func (p *Proxy) body(c *call) ([]byte, error) {
	control := http.NewResponseController(c.w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // a test's writer has none
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, p.cfg.MaxBody))
	_ = control.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, refuse("its body has more than %d bytes", p.cfg.MaxBody)
	}
	if err != nil {
		return nil, farm.Invalidf("its body cannot be read: %v", err)
	}
	return data, nil
}
