package client_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEverythingIsDocumented: each exported name has a comment, and is used in
// an example.
func TestEverythingIsDocumented(t *testing.T) {
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") && name != "example_test.go" {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	pkg, err := doc.NewFromFiles(fset, files, "github.com/lapse-timers/lapse/timers/client")
	if err != nil {
		t.Fatal(err)
	}
	used := usedInExamples(t)
	examples := map[string]bool{}
	check := func(name, comment string) {
		t.Helper()
		if strings.TrimSpace(comment) == "" {
			t.Errorf("%s has no comment", name)
		}
		_, last, method := strings.Cut(name, ".")
		if !method {
			last = name
		}
		// Methods that an interface of the library or of fmt asks for.
		if last != "Error" && last != "Unwrap" && !used[last] && !examples[name] {
			t.Errorf("%s is in no example", name)
		}
	}
	values := func(all []*doc.Value) {
		for _, v := range all {
			for _, spec := range v.Decl.Specs {
				s := spec.(*ast.ValueSpec)
				for _, name := range s.Names {
					if name.IsExported() {
						check(name.Name, v.Doc+s.Doc.Text()+s.Comment.Text())
					}
				}
			}
		}
	}
	funcs := func(all []*doc.Func, of string) {
		for _, f := range all {
			check(of+f.Name, f.Doc)
			if of == "Client." && len(f.Examples) == 0 {
				t.Errorf("%s%s has no example of its own", of, f.Name)
			}
		}
	}
	if pkg.Doc == "" || len(pkg.Examples) == 0 || len(pkg.Types) < 10 {
		t.Fatalf("the package has %d types and %d examples, and the comment %q", len(pkg.Types), len(pkg.Examples), pkg.Doc)
	}
	values(pkg.Consts)
	values(pkg.Vars)
	funcs(pkg.Funcs, "")
	for _, typ := range pkg.Types {
		examples[typ.Name] = len(typ.Examples) > 0
		check(typ.Name, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs, "")
		funcs(typ.Methods, typ.Name+".")
	}
}

// usedInExamples are the names behind a dot in the examples.
func usedInExamples(t *testing.T) map[string]bool {
	t.Helper()
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "example_test.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			used[s.Sel.Name] = true
		}
		return true
	})
	return used
}
