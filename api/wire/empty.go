package wire

import "encoding/json"

// emptyValue is a displayed value of length zero. Its data is encoded although it is empty, because it has no link.
type emptyValue struct {
	Display int    `json:"display"`
	Mime    string `json:"mime"`
	Data    string `json:"data"`
}

// MarshalJSON writes data or the link, one of them always.
func (r Rich) MarshalJSON() ([]byte, error) {
	if r.Data == "" && r.URL == "" && r.ArtifactID == "" {
		return json.Marshal(emptyValue{Display: r.Display, Mime: r.Mime})
	}
	type plain Rich
	return json.Marshal(plain(r))
}

// MarshalJSON writes data or the link, one of them always.
func (d DisplayData) MarshalJSON() ([]byte, error) {
	if d.Data == "" && d.URL == "" && d.ArtifactID == "" {
		return json.Marshal(emptyValue{Display: d.Display, Mime: d.Mime})
	}
	type plain DisplayData
	return json.Marshal(plain(d))
}
