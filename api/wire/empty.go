package wire

import "encoding/json"

// MarshalJSON writes data or the link, one of them always: a value of length zero has data, since it has no link.
func (r Rich) MarshalJSON() ([]byte, error) {
	type plain Rich
	if r.Data != "" || r.URL != "" || r.ArtifactID != "" {
		return json.Marshal(plain(r))
	}
	return json.Marshal(struct {
		plain
		Data string `json:"data"`
	}{plain: plain(r)})
}

// MarshalJSON writes data or the link, one of them always.
func (d DisplayData) MarshalJSON() ([]byte, error) {
	type plain DisplayData
	if d.Data != "" || d.URL != "" || d.ArtifactID != "" {
		return json.Marshal(plain(d))
	}
	return json.Marshal(struct {
		plain
		Data string `json:"data"`
	}{plain: plain(d)})
}
