// Package config fills a struct from defaults, a TOML file and the environment, in this order, and reports every problem
// at once: unknown keys, values that do not parse and values that are not allowed, each with its key, the value and the
// allowed values. It also renders a commented example file and the list of settings from the same struct, so that neither
// can drift from the code. It defines no settings: services declare theirs, the program combines them.
//
// A setting is an exported field of the struct or of a struct nested in it. Its tags are:
//
//	toml    key in the file; absent: that of tag json, or the field's name in snake_case; "-": no setting
//	env     full name of its environment variable; absent: prefix, sections and key in upper case joined by "_"; "-": none
//	default value if neither file nor environment gives one; absent: the value that the field already has
//	doc     description
//	oneof   the allowed values of a string or a list, separated by blanks
//	min     smallest allowed number or duration
//	max     largest allowed number or duration
//	secret  "true": its value is never part of a problem
//
// Types: string, bool, signed and unsigned integers, floats, time.Duration ("30s"), anything with UnmarshalText, lists of
// these (comma-separated outside the file), map[string]string ("a=b,c=d" outside the file), nested structs (a table) and
// lists of structs (an array of tables, in the file only; text as well if the struct has UnmarshalText).
package config
