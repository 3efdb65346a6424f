package main

import (
	"fmt"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"
)

// A lister lists one package.
type lister struct {
	module string
	pkg    *types.Package
	lines  []string
}

// list returns what users of pkg, a package of module, may depend on: sorted lines, which
// [symbol] tells apart.
func list(module string, pkg *types.Package) []string {
	l := &lister{module: module, pkg: pkg}
	for _, name := range pkg.Scope().Names() {
		if token.IsExported(name) {
			l.object(pkg.Scope().Lookup(name))
		}
	}
	slices.Sort(l.lines)
	return slices.Compact(l.lines)
}

// separator stands between a name and the fact about it.
const separator = ": "

// add adds a line about name, which may be a member, as in T.Method.
func (l *lister) add(name, format string, args ...any) {
	path := strings.TrimPrefix(strings.TrimPrefix(l.pkg.Path(), l.module), "/")
	l.lines = append(l.lines, path+"."+name+separator+fmt.Sprintf(format, args...))
}

// symbol returns the part of a line that identifies it. A name with several facts has several lines, each
// with a different word behind the name.
func symbol(line string) string {
	name, about, _ := strings.Cut(line, separator)
	if about == "comparable" {
		return name + " " + about
	}
	return name
}

func (l *lister) object(o types.Object) {
	switch o := o.(type) {
	case *types.Const:
		l.add(o.Name(), "const %s = %s", l.text(o.Type()), o.Val().ExactString())
	case *types.Var:
		l.add(o.Name(), "var %s", l.text(o.Type()))
	case *types.Func:
		l.add(o.Name(), "%s", l.text(o.Type()))
	case *types.TypeName:
		l.typeName(o)
	}
}

func (l *lister) typeName(o *types.TypeName) {
	if alias, ok := o.Type().(*types.Alias); ok {
		l.add(o.Name(), "type = %s", l.text(alias.Rhs()))
		if of, ok := types.Unalias(alias).(*types.Named); !ok || of.Obj().Pkg() != l.pkg || of.Obj().Exported() {
			return // listed where it is, or nothing to list
		}
	}
	parameters := ""
	if named, ok := types.Unalias(o.Type()).(*types.Named); ok {
		parameters = l.parameters(named.TypeParams())
	}
	switch under := o.Type().Underlying().(type) {
	case *types.Struct:
		l.add(o.Name(), "type%s struct", parameters)
		if types.Comparable(o.Type()) {
			l.add(o.Name(), "comparable")
		}
		l.fields(o.Name(), under, map[string]bool{})
	case *types.Interface:
		l.interfaceType(o.Name(), parameters, under)
		return
	default:
		l.add(o.Name(), "type%s %s", parameters, l.text(under))
	}
	l.methods(o.Name(), o.Type())
}

// interfaceType lists an interface. Users implement an interface whose methods are all exported, so that a
// new method breaks them. Only this package can implement one with an unexported method.
func (l *lister) interfaceType(name, parameters string, t *types.Interface) {
	closed := false
	var methods []string
	for m := range t.Methods() {
		closed = closed || !m.Exported()
		if m.Exported() {
			methods = append(methods, m.Name())
			l.add(name+"."+m.Name(), "method %s", l.text(m.Type()))
		}
	}
	union := ""
	if !t.IsMethodSet() {
		union = " " + l.text(t)
	}
	if closed {
		l.add(name, "type%s interface%s with unexported methods", parameters, union)
	} else {
		l.add(name, "type%s interface%s with the methods %s", parameters, union, strings.Join(methods, " "))
	}
}

// fields lists the fields of a struct, and the fields that an embedded unexported struct promotes.
func (l *lister) fields(name string, t *types.Struct, seen map[string]bool) {
	for i := range t.NumFields() {
		f := t.Field(i)
		if seen[f.Name()] {
			continue
		}
		seen[f.Name()] = true
		if f.Exported() {
			kind, tag := "field", ""
			if f.Embedded() {
				kind = "embedded"
			}
			if json, ok := reflect.StructTag(t.Tag(i)).Lookup("json"); ok {
				tag = fmt.Sprintf(" json %q", json)
			}
			l.add(name+"."+f.Name(), "%s %s%s", kind, l.text(f.Type()), tag)
			continue
		}
		if embedded := f.Type(); f.Embedded() {
			if p, ok := embedded.(*types.Pointer); ok {
				embedded = p.Elem()
			}
			if s, ok := embedded.Underlying().(*types.Struct); ok {
				l.fields(name, s, seen)
			}
		}
	}
}

// methods lists the methods of t and of pointers to it, promoted ones too.
func (l *lister) methods(name string, t types.Type) {
	of := types.NewMethodSet(t)
	for s := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		m := s.Obj()
		if !m.Exported() {
			continue
		}
		receiver := "*" + name
		if of.Lookup(m.Pkg(), m.Name()) != nil {
			receiver = name
		}
		l.add(name+"."+m.Name(), "method of %s %s", receiver, l.text(s.Type()))
	}
}

func (l *lister) parameters(params *types.TypeParamList) string {
	if params.Len() == 0 {
		return ""
	}
	var all []string
	for p := range params.TypeParams() {
		all = append(all, p.Obj().Name()+" "+l.text(p.Constraint()))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// text writes t with the paths of packages, and without the names of parameters, because no code depends on
// them.
func (l *lister) text(t types.Type) string {
	return types.TypeString(nameless(t), func(p *types.Package) string {
		if p == l.pkg {
			return ""
		}
		return strings.TrimPrefix(p.Path(), l.module+"/")
	})
}

// nameless returns t without the names of parameters in it.
func nameless(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Pointer:
		return types.NewPointer(nameless(t.Elem()))
	case *types.Slice:
		return types.NewSlice(nameless(t.Elem()))
	case *types.Array:
		return types.NewArray(nameless(t.Elem()), t.Len())
	case *types.Map:
		return types.NewMap(nameless(t.Key()), nameless(t.Elem()))
	case *types.Chan:
		return types.NewChan(t.Dir(), nameless(t.Elem()))
	case *types.Signature:
		var params []*types.TypeParam
		for p := range t.TypeParams().TypeParams() {
			name := types.NewTypeName(token.NoPos, p.Obj().Pkg(), p.Obj().Name(), nil)
			params = append(params, types.NewTypeParam(name, p.Constraint()))
		}
		return types.NewSignatureType(nil, nil, params, tuple(t.Params()), tuple(t.Results()), t.Variadic())
	}
	return t
}

func tuple(of *types.Tuple) *types.Tuple {
	var vars []*types.Var
	for v := range of.Variables() {
		vars = append(vars, types.NewParam(token.NoPos, v.Pkg(), "", nameless(v.Type())))
	}
	return types.NewTuple(vars...)
}
