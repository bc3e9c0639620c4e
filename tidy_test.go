package glovebox_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// These tests hold the rules of the repository. Each rule has its reason beside it; whoever needs an exception writes it
// here, with a reason of its own, where it is seen in review.

const module = "glovebox"

// A goFile is one parsed Go file of the repository.
type goFile struct {
	path, dir string // relative to the root, with slashes; the root's dir is "."
	text      string
	syntax    *ast.File
	imports   []string
	named     map[string]string // import path by the name it has in this file
}

func (f *goFile) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// product reports whether the file is part of what users run. Examples are programs beside it; the conformance suite and its
// probe are tests of drivers, and netlab is an internet for tests: they start, reach for and wait as they please, and
// TestTidyTestsOnly keeps them out of the product.
func (f *goFile) product() bool {
	return !f.test() && !within(f.path, "examples") && !within(f.path, "driver/drivertest") && !within(f.path, "internal/netlab")
}

// at names a place, for messages.
func (f *goFile) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.path, repository().line(pos))
}

func within(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

type tree struct {
	fset  *token.FileSet
	files []string // every file but what is built or belongs to git
	code  []*goFile
	err   error
}

func (t *tree) line(pos token.Pos) int { return t.fset.Position(pos).Line }

var repository = sync.OnceValue(func() *tree {
	t := &tree{fset: token.NewFileSet()}
	t.err = filepath.WalkDir(".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && slices.Contains([]string{".git", "bin", "dist"}, name):
			return filepath.SkipDir
		case name == ".git" || !e.Type().IsRegular() || strings.HasSuffix(name, ".test"):
			return nil
		}
		t.files = append(t.files, filepath.ToSlash(name))
		if path.Ext(name) == ".go" {
			return t.parse(filepath.ToSlash(name))
		}
		return nil
	})
	return t
})

func (t *tree) parse(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	syntax, err := parser.ParseFile(t.fset, name, text, parser.ParseComments)
	if err != nil {
		return err
	}
	f := &goFile{path: name, dir: path.Dir(name), text: string(text), syntax: syntax, named: map[string]string{}}
	for _, spec := range syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		f.imports = append(f.imports, imported)
		if spec.Name != nil {
			f.named[spec.Name.Name] = imported
		} else {
			f.named[path.Base(imported)] = imported // true of all that the bans name
		}
	}
	t.code = append(t.code, f)
	return nil
}

func goFiles(t *testing.T) []*goFile {
	t.Helper()
	r := repository()
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.code
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTidyNames: what a test or a run leaves behind is not part of the repository, and names need no quotes anywhere.
func TestTidyNames(t *testing.T) {
	r := repository()
	if r.err != nil {
		t.Fatal(r.err)
	}
	plain := regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)
	for _, name := range r.files {
		if !plain.MatchString(name) {
			t.Errorf("%q: letters, digits and . _ - are enough for a name", name)
		}
		if slices.Contains([]string{".key", ".db", ".db-wal", ".db-shm", ".turn"}, path.Ext(name)) {
			t.Errorf("%s is what a data_dir has", name)
		}
	}
}

// TestTidyImports: an import points to a lower row of the picture in ARCHITECTURE.md, so that there are no rings, a reader
// can start at the bottom, and no door or driver grows into another. Tests may also use their own row, as the tests of a
// driver use the conformance suite.
func TestTidyImports(t *testing.T) {
	rows := pictureRows(t)
	seen := map[string]bool{}
	for _, f := range goFiles(t) {
		outside := within(f.dir, "examples")
		seen[f.dir] = true
		row, ok := rows[f.dir]
		if !ok && !outside {
			t.Errorf("%s: package %s has no row in the picture of ARCHITECTURE.md", f.path, f.dir)
			continue
		}
		for _, imported := range f.imports {
			if !within(imported, module) {
				continue
			}
			dir := strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
			if dir == "" {
				dir = "."
			}
			target, ok := rows[dir]
			switch {
			case !ok:
				t.Errorf("%s imports %s, which is in no row of the picture of ARCHITECTURE.md", f.path, imported)
			case outside || target < row || f.test() && target == row:
			default:
				t.Errorf("%s (row %d) imports %s (row %d); imports point only down", f.path, row, imported, target)
			}
		}
	}
	for dir := range rows {
		if !seen[dir] {
			t.Errorf("the picture of ARCHITECTURE.md has package %s, which does not exist", dir)
		}
	}
}

// TestTidyTestsOnly: nothing of the conformance suite or of the laboratory is linked into what users run.
func TestTidyTestsOnly(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.product() && slices.ContainsFunc(f.imports, func(p string) bool {
			return within(p, module+"/driver/drivertest") || within(p, module+"/internal/netlab")
		}) {
			t.Errorf("%s imports the conformance suite or the laboratory, which are for tests", f.path)
		}
	}
}

func pictureRows(t *testing.T) map[string]int {
	t.Helper()
	_, section, _ := strings.Cut(read(t, "ARCHITECTURE.md"), "\n## The packages\n")
	_, section, _ = strings.Cut(section, "```\n")
	picture, _, ok := strings.Cut(section, "\n```")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no picture under The packages")
	}
	rows := map[string]int{}
	for line := range strings.Lines(picture) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), "  ")
		row, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("ARCHITECTURE.md: the picture of the packages has a line without a row: %q", line)
		}
		names, _, _ := strings.Cut(rest, "  ") // what follows is a remark
		for name := range strings.SplitSeq(names, " · ") {
			if name = strings.TrimSpace(name); name == "root package "+module {
				name = "."
			}
			rows[name] = row
		}
	}
	return rows
}

// moduleImporters are the packages by which each module is reached.
func moduleImporters() map[string][]string {
	return map[string][]string{
		"github.com/aws/aws-sdk-go-v2":           {"internal/brokerd", "internal/brokerd/mint"},
		"github.com/elastic/go-seccomp-bpf":      {"internal/seccomp/compile"},
		"github.com/goccy/go-yaml":               {"cmd/glovebox"},
		"github.com/godbus/dbus/v5":              {"internal/userscope"},
		"github.com/golang-jwt/jwt/v5":           {"internal/brokerd/mint"},
		"github.com/google/go-cmp":               {"driver/drivertest"}, // and tests
		"github.com/google/go-containerregistry": {"internal/imagesource"},
		"github.com/google/jsonschema-go":        {"internal/brokerd/action"},
		"github.com/klauspost/compress":          {"internal/imagesource"},
		"github.com/landlock-lsm/go-landlock":    {"internal/sandboxinit"},
		"github.com/moby/sys/mountinfo":          {"internal/cgroup"},
		"github.com/rogpeppe/go-internal":        {}, // tests only
		"github.com/spf13/cobra":                 {"cmd/glovebox"},
		"github.com/spf13/pflag":                 {"cmd/glovebox"},
		"github.com/xuri/excelize/v2":            {"examples/dying-products/generate"},
		"golang.org/x/mod":                       {"internal/trace"},
		"golang.org/x/net":                       {"internal/egress", "internal/netd", "internal/netlab", "internal/seccomp/compile"}, // names, DNS, BPF
		"golang.org/x/oauth2":                    {"internal/brokerd/mint"},
		// System calls are wanted wherever files, groups or processes are handled; to wrap them all in one package would be
		// x/sys again.
		"golang.org/x/sys": {
			"attack",
			"cmd/glovebox",
			"driver/drivertest",
			"driver/drivertest/probe",
			"driver/gvisor",
			"driver/microvm",
			"driver/process",
			"engine",
			"internal/admission",
			"internal/brokerd",
			"internal/cgroup", "internal/guest",
			"internal/hostside",
			"internal/imagestore", "internal/kernelfile",
			"internal/livefolder", "internal/netjail",
			"internal/lockfile",
			"internal/netd", "internal/netlab", "internal/netwire",
			"internal/output",
			"internal/sandboxinit",
			"internal/sandboxinit/wire",
			"internal/store",
		},
		"gvisor.dev/gvisor":                  {"internal/netd"},
		"modernc.org/sqlite":                 {"internal/store"},
		"software.sslmate.com/src/go-pkcs12": {"internal/gateway"},
	}
}

// TestTidyModules: a module is reached through one package, so that it can be judged, updated or replaced in one place, and
// so that what init links stays small. The exceptions are in the table.
func TestTidyModules(t *testing.T) {
	importers := moduleImporters()
	used := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, imported := range f.imports {
			if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
				continue // the standard library or this module
			}
			known := false
			for name, dirs := range importers {
				if within(imported, name) {
					known, used[name] = true, true
					if !f.test() && !slices.Contains(dirs, f.dir) {
						t.Errorf("%s imports %s, which is for %v", f.path, imported, dirs)
					}
				}
			}
			if !known {
				t.Errorf("%s imports %s, which the table of this test does not have", f.path, imported)
			}
		}
	}
	for name := range importers {
		if !used[name] {
			t.Errorf("nothing imports %s; take it out of go.mod and of this table", name)
		}
	}
}

// TestTidyGoMod: each direct module says in go.mod why it is here. A reason that does not fit one line, or that nobody can
// write, is a module to do without.
func TestTidyGoMod(t *testing.T) {
	// What only a tool needs is marked as indirect. Replacements would need a reason of their own; there are none.
	requirement := regexp.MustCompile(`^(?:require |tool )?\t?(\S+\.\S+/\S+)(?: v\S+)?(.*)$`)
	found := 0
	for line := range strings.Lines(read(t, "go.mod")) {
		m := requirement.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil || strings.Contains(m[2], "// indirect") {
			continue
		}
		found++
		if len(strings.Fields(m[2])) < 3 { // the slashes and two words
			t.Errorf("go.mod: %s has no reason behind it", m[1])
		}
	}
	if found == 0 {
		t.Error("go.mod: no requirement found")
	}
}

// TestTidySizes: what does not fit a screen or two is not read, and a reviewer who cannot hold a function in mind lets
// faults through. The width is that of two columns side by side on a common screen.
func TestTidySizes(t *testing.T) {
	const fileLines, functionLines, columns = 500, 70, 125
	for _, f := range goFiles(t) {
		n := 0
		for line := range strings.Lines(f.text) {
			n++
			w := utf8.RuneCountInString(strings.TrimRight(line, "\n"))
			if w > columns && !strings.HasSuffix(f.path, "_test.go") { // tables of tests may be wide
				t.Errorf("%s:%d has %d columns, the most is %d", f.path, n, w, columns)
			}
		}
		if n > fileLines {
			t.Errorf("%s has %d lines, the most is %d: split it by topic", f.path, n, fileLines)
		}
		for _, d := range f.syntax.Decls {
			if _, ok := d.(*ast.FuncDecl); !ok {
				// A function as a value of a variable is a function all the same.
				ast.Inspect(d, func(n ast.Node) bool {
					if lit, ok := n.(*ast.FuncLit); ok {
						checkLength(t, f, lit, "function", functionLines)
					}
					return true
				})
				continue
			}
			checkLength(t, f, d, d.(*ast.FuncDecl).Name.Name, functionLines)
		}
	}
}

func checkLength(t *testing.T, f *goFile, n ast.Node, name string, most int) {
	t.Helper()
	if lines := repository().line(n.End()) - repository().line(n.Pos()) + 1; lines > most {
		t.Errorf("%s: %s has %d lines, the most is %d", f.at(n.Pos()), name, lines, most)
	}
}

// TestTidyPackageDocs: a package says in one place what it is for. Two places drift apart.
func TestTidyPackageDocs(t *testing.T) {
	docs := map[string][]string{}
	for _, f := range goFiles(t) {
		if f.syntax.Doc == nil {
			if _, ok := docs[f.dir]; !ok {
				docs[f.dir] = nil
			}
			continue
		}
		docs[f.dir] = append(docs[f.dir], f.path)
		want := "Package " + f.syntax.Name.Name + " "
		if f.syntax.Name.Name == "main" {
			want = "Command " + path.Base(f.dir) + " "
		}
		if !strings.HasPrefix(f.syntax.Doc.Text(), want) {
			t.Errorf("%s: the package's comment does not begin with %q", f.path, want)
		}
	}
	for dir, files := range docs {
		if len(files) != 1 {
			t.Errorf("package %s is documented in %d files %v, not in one", dir, len(files), files)
		}
	}
}
