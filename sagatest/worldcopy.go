package sagatest

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"time"
	"unsafe"
)

// A copier copies values of an author's type. It copies unexported fields, too: a shared one would show a schedule the
// changes of another.
type copier struct {
	known map[unsafe.Pointer]reflect.Value // copies by the address of the original
}

// deepCopy returns a copy of v that shares nothing mutable with it. Its error names a value in v that is no data.
func deepCopy[W any](v *W) (w *W, err error) {
	defer func() {
		value := recover()
		if _, ok := value.(noData); ok {
			path, typ := findNoData(reflect.ValueOf(v).Elem(), map[unsafe.Pointer]bool{})
			err = fmt.Errorf("a world is data, and cannot hold a %s: %s%s", typ, reflect.TypeFor[W](), path)
		} else if value != nil {
			panic(value)
		}
	}()
	c := copier{}
	return c.copyValue(reflect.ValueOf(v)).Interface().(*W), nil
}

// noData is the panic of a copier at a value that cannot be copied.
type noData struct{}

// isNoData reports whether v is set and cannot be copied.
func isNoData(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return !v.IsNil()
	}
	return false
}

// findNoData returns the path to a value in v that is no data, and its type, or nil. A copier does not keep that path,
// since it runs far more often.
func findNoData(v reflect.Value, seen map[unsafe.Pointer]bool) (path string, typ reflect.Type) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() || v.Kind() == reflect.Pointer && seen[v.UnsafePointer()] {
			return "", nil
		}
		if v.Kind() == reflect.Pointer {
			seen[v.UnsafePointer()] = true
		}
		return findNoData(v.Elem(), seen)
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			if inner, t := findNoData(each.Value(), seen); t != nil {
				return fmt.Sprintf("[%#v]%s", each.Key(), inner), t
			}
			if inner, t := findNoData(each.Key(), seen); t != nil {
				return " (a key)" + inner, t
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if inner, t := findNoData(v.Index(i), seen); t != nil {
				return fmt.Sprintf("[%d]%s", i, inner), t
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if inner, t := findNoData(v.Field(i), seen); t != nil {
				return "." + v.Type().Field(i).Name + inner, t
			}
		}
	}
	if isNoData(v) {
		return "", v.Type()
	}
	return "", nil
}

var timeType = reflect.TypeFor[time.Time]()

func (c *copier) copyValue(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		return c.copyOnce(v, func() reflect.Value { return reflect.New(v.Type().Elem()) }, func(to reflect.Value) { c.copyInto(to.Elem(), v.Elem()) })
	case reflect.Map:
		return c.copyOnce(v, func() reflect.Value { return reflect.MakeMapWithSize(v.Type(), v.Len()) }, func(to reflect.Value) {
			for each := v.MapRange(); each.Next(); {
				to.SetMapIndex(c.copyValue(each.Key()), c.copyValue(each.Value()))
			}
		})
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		to := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			c.copyInto(to.Index(i), v.Index(i))
		}
		return to
	case reflect.Interface:
		if v.IsNil() {
			return v
		}
		to := reflect.New(v.Type()).Elem()
		to.Set(c.copyValue(v.Elem()))
		return to
	case reflect.Struct, reflect.Array:
		from, to := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
		from.Set(v) // gives its fields an address
		c.copyInto(to, from)
		return to
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		if isNoData(v) {
			panic(noData{})
		}
	}
	return v
}

// copyOnce copies the target of v, unless it was copied before.
func (c *copier) copyOnce(v reflect.Value, make func() reflect.Value, fill func(reflect.Value)) reflect.Value {
	if v.IsNil() {
		return v
	}
	at := v.UnsafePointer()
	if to, ok := c.known[at]; ok && to.Type() == v.Type() {
		return to
	}
	if c.known == nil {
		c.known = map[unsafe.Pointer]reflect.Value{}
	}
	to := make()
	c.known[at] = to
	fill(to)
	return to
}

func (c *copier) copyInto(to, from reflect.Value) {
	to, from = openField(to), openField(from)
	switch {
	case from.Type() == timeType: // its location is compared by its address
		to.Set(from)
	case from.Kind() == reflect.Struct:
		for i := range from.NumField() {
			c.copyInto(to.Field(i), from.Field(i))
		}
	case from.Kind() == reflect.Array:
		for i := range from.Len() {
			c.copyInto(to.Index(i), from.Index(i))
		}
	default:
		to.Set(c.copyValue(from))
	}
}

// openField returns v, which has an address, so that it can be read and set although its field is unexported.
func openField(v reflect.Value) reflect.Value {
	if v.CanInterface() {
		return v
	}
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
}

// digestValue adds v to h. Addresses do not count.
func digestValue(h *maphash.Hash, v reflect.Value, within int) {
	const deepest = 100 // a ring has no end
	if within > deepest {
		return
	}
	h.WriteByte(byte(v.Kind()))
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			digestValue(h, v.Elem(), within+1)
		}
	case reflect.Map:
		maphash.WriteComparable(h, digestMap(h.Seed(), v, within))
	case reflect.Slice, reflect.Array:
		maphash.WriteComparable(h, v.Len())
		for i := range v.Len() {
			digestValue(h, v.Index(i), within+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			digestValue(h, v.Field(i), within+1)
		}
	default:
		digestPlain(h, v)
	}
}

// digestMap does not depend on the order of the entries.
func digestMap(seed maphash.Seed, v reflect.Value, within int) (sum uint64) {
	for each := v.MapRange(); each.Next(); {
		var entry maphash.Hash
		entry.SetSeed(seed)
		digestValue(&entry, each.Key(), within+1)
		digestValue(&entry, each.Value(), within+1)
		sum += entry.Sum64()
	}
	return sum + uint64(v.Len())
}

func digestPlain(h *maphash.Hash, v reflect.Value) {
	switch {
	case v.Kind() == reflect.String:
		h.WriteString(v.String())
		h.WriteByte(0)
	case v.Kind() == reflect.Bool:
		maphash.WriteComparable(h, v.Bool())
	case v.CanInt():
		maphash.WriteComparable(h, v.Int())
	case v.CanUint():
		maphash.WriteComparable(h, v.Uint())
	case v.CanFloat():
		maphash.WriteComparable(h, v.Float())
	case v.CanComplex():
		maphash.WriteComparable(h, v.Complex())
	}
}
