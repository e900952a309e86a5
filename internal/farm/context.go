package farm

// CodeContext is where code of a sandbox runs, with the variables of earlier code: a name and a language. Languages without a kernel keep nothing
// but the directory.
type CodeContext struct {
	Name     string `json:"name"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"` // where its code starts; in a sandbox it is absolute
}
