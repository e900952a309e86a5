package storetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

// FillTime is what Fill sets times to.
var FillTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Fill sets every field of a struct, and of the structs in it, to a value that is not zero, so that a test sees which of them are lost.
func Fill(v any) { fill(reflect.ValueOf(v).Elem(), "x") }

func fill(v reflect.Value, path string) {
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		v.SetBytes(fmt.Appendf(nil, `{"a":%q}`, path))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(path)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7.5)
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, path)
		fill(value, path)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(FillTime))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	default:
		panic(fmt.Sprintf("storetest.Fill does not know how to fill a %s; add it", v.Type()))
	}
}
