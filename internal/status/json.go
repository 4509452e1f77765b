package status

import (
	"encoding/json"
	"io"
	"reflect"
)

// WriteJSON writes a document of the status socket, indented: people read it
// with curl. A list without elements is [], never null, so that a script need
// not know the difference.
func WriteJSON(w io.Writer, v any) error {
	doc := reflect.New(reflect.TypeOf(v)).Elem()
	doc.Set(reflect.ValueOf(v))
	fill(doc)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(doc.Interface())
}

// fill replaces the nil lists in a document by empty ones. It copies lists of structs, because other
// readers may have them. Nothing behind a pointer has a list.
func fill(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case v.Kind() == reflect.Slice && v.IsNil():
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		own := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(own, v)
		for i := range own.Len() {
			fill(own.Index(i))
		}
		v.Set(own)
	}
}
