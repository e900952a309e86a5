package kernel

import "testing"

func TestCodecRoundTripAndForgery(t *testing.T) {
	t.Parallel()
	c := newCodec()
	m, err := c.request("execute_request", map[string]string{"code": "1"}, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	frames, err := c.pack(m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.unpack(append([][]byte{[]byte("address")}, frames...))
	if err != nil || got.Header != m.Header || string(got.Content) != `{"code":"1"}` {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := newCodec().unpack(frames); err == nil {
		t.Error("a foreign key is accepted")
	}
	if _, err := c.unpack(frames[:4]); err == nil {
		t.Error("a short message is accepted")
	}
	if _, err := c.unpack(nil); err == nil {
		t.Error("an empty message is accepted")
	}
}
