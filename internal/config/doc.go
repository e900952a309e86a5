// Package config fills a struct from defaults, a TOML file and the environment, in this order, and reports every problem
// at once: unknown keys, values that do not parse and values that are not allowed, each with its key, the value and what
// is allowed. It also renders a commented example file and the list of settings from the same struct, so that neither
// can drift from the code. It owns no settings: services declare theirs, the program puts them together.
//
// A setting is an exported field of the struct or of a struct nested in it. Its tags are:
//
//	toml    key in the file; absent: that of tag json, or the field's name in snake_case; "-": no setting
//	env     full name of its environment variable; absent: prefix, sections and key in upper case joined by "_"; "-": none
//	default value when neither file nor environment gives one; absent: the value of the field before
//	doc     what it means, in plain words
//	oneof   the allowed values of a string or a list, separated by blanks
//	min     smallest allowed number or duration
//	max     largest allowed number or duration
//	secret  "true": its value never shows up in a problem
//
// Types: string, bool, signed and unsigned integers, floats, time.Duration ("30s"), anything with UnmarshalText, lists of
// these (comma-separated outside the file), map[string]string ("a=b,c=d" outside the file), nested structs (a table) and
// lists of structs (an array of tables, in the file only; where the struct has UnmarshalText, text will do as well).
package config
