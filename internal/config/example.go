package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Setting describes one setting of a struct.
type Setting struct {
	Key     string // "api.listen"
	Env     string // "SANDFARM_API_LISTEN"; empty: in the file only
	Type    string // in words: "text", "whole number", "duration", "list of text" …
	Default string // as it would be written in the environment; empty: none
	Allowed string // in words; empty: anything of the type
	Doc     string
	Secret  bool
}

// Names lists the settings of target, a pointer to a struct, in the order of its fields. It is empty for anything else.
// A default comes from the tag, or else from target.
func Names(target any) []Setting {
	fields, err := settings(target, "")
	if err != nil {
		return nil
	}
	var out []Setting
	each(fields, func(f field) {
		out = append(out, Setting{
			Key: f.path, Env: f.env, Type: typeText(f.value.Type()), Default: f.def(),
			Allowed: limitText(f), Doc: f.doc(), Secret: f.secret(),
		})
	})
	return out
}

// Example renders a TOML file with every setting of target, a pointer to a struct: documented, with its default, and
// commented out ("#key = value"), so that the unedited file changes nothing. Defaults are those of Names.
func Example(target any) string {
	fields, err := settings(target, "")
	if err != nil {
		return ""
	}
	var b strings.Builder
	b.WriteString("# A line that begins with \"#\" and no blank is a setting with its default: remove the \"#\" to change it.\n")
	b.WriteString("# The environment variable of a setting overrides this file.\n")
	writeTable(&b, fields, "", "")
	return b.String()
}

func writeTable(b *strings.Builder, fields []field, path, comment string) {
	var tables []field
	for _, f := range fields {
		if f.kind == kindTable || f.kind == kindTables {
			tables = append(tables, f)
			continue
		}
		writeSetting(b, f)
	}
	for _, f := range tables {
		b.WriteByte('\n')
		writeComment(b, f.doc())
		name := join(path, f.key)
		if f.kind == kindTable {
			fmt.Fprintf(b, "%s[%s]\n", comment, name)
			writeTable(b, f.fields, name, comment)
			continue
		}
		fmt.Fprintf(b, "#[[%s]]\n", name)
		inner, err := fieldsOf(reflect.New(f.value.Type().Elem()).Elem(), name, "")
		if err == nil {
			writeTable(b, inner, name, "#")
		}
	}
}

func writeSetting(b *strings.Builder, f field) {
	b.WriteByte('\n')
	writeComment(b, f.doc())
	var facts []string
	if limit := limitText(f); limit != "" {
		facts = append(facts, "Allowed: "+limit+".")
	}
	if f.env != "" {
		facts = append(facts, "Environment: "+f.env)
	}
	writeComment(b, strings.Join(facts, " "))
	fmt.Fprintf(b, "#%s = %s\n", f.key, f.defaultTOML())
}

func writeComment(b *strings.Builder, text string) {
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString("# " + line + "\n")
		}
	}
}

// defaultTOML is the default, or the zero value of its type, in TOML.
func (f field) defaultTOML() string {
	text := f.def()
	t := f.value.Type()
	switch f.kind {
	case kindList:
		items := splitList(text)
		for i, item := range items {
			items[i] = scalarTOML(t.Elem(), item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case kindMap:
		pairs := splitList(text)
		for i, pair := range pairs {
			key, value, _ := strings.Cut(pair, "=")
			pairs[i] = quoteTOML(key) + " = " + quoteTOML(value)
		}
		return "{" + strings.Join(pairs, ", ") + "}"
	default:
		return scalarTOML(t, text)
	}
}

func scalarTOML(t reflect.Type, text string) string {
	quoted := t == durationType || t.Kind() == reflect.String || reflect.PointerTo(t).Implements(textType)
	switch {
	case t == durationType && text == "":
		return `"0s"`
	case quoted:
		return quoteTOML(text)
	case text != "":
		return text
	case t.Kind() == reflect.Bool:
		return "false"
	default:
		return "0"
	}
}

// quoteTOML writes a basic string: TOML has \uXXXX and \UXXXXXXXX, but not Go's \x, \a and \v.
func quoteTOML(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Markdown renders the settings of target as a table for the documentation.
func Markdown(target any) string {
	var b strings.Builder
	b.WriteString("| setting | environment | type | default | meaning |\n|---|---|---|---|---|\n")
	cell := strings.NewReplacer("|", `\|`, "\n", " ")
	code := func(text string) string {
		if text == "" {
			return ""
		}
		return "`" + cell.Replace(text) + "`"
	}
	for _, s := range Names(target) {
		kind := s.Type
		if s.Allowed != "" {
			kind += ", " + s.Allowed
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", code(s.Key), code(s.Env), cell.Replace(kind), code(s.Default), cell.Replace(s.Doc))
	}
	return b.String()
}

func typeText(t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration"
	case reflect.PointerTo(t).Implements(textType):
		return "text"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && !isScalar(t.Elem()):
		return "list of tables"
	case t.Kind() == reflect.Slice:
		return "list of " + typeText(t.Elem())
	case t.Kind() == reflect.Map:
		return "table of text"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64:
		return "number"
	default:
		return "whole number"
	}
}

// limitText describes the limits of oneof, min and max; empty: no limits.
func limitText(f field) string {
	if allowed := f.oneOf(); len(allowed) > 0 {
		for i, one := range allowed {
			allowed[i] = strconv.Quote(one)
		}
		return strings.Join(allowed, ", ")
	}
	if low, high := f.bound("min"), f.bound("max"); low != "" || high != "" {
		return rangeText(low, high)
	}
	return ""
}

// allowedText is limitText, or the type where nothing limits it.
func allowedText(f field) string {
	if text := limitText(f); text != "" {
		return text
	}
	return typeText(f.value.Type())
}
