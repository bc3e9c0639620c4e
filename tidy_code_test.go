package glovebox_test

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// ban is something that the product's code does not do.
type ban struct {
	in    string   // the import path
	names string   // separated by spaces, * for any end
	only  []string // where it is allowed all the same
	why   string
}

// codeBans are all of them.
func codeBans() []ban {
	return []ban{
		// A measurement compares with other programs, and with the command line itself: fixed commands, fixed programs. What
		// fetches packages are the distribution's own tools, as a user who owns nothing, and what they fetched is not executed.
		// A broker is a process of its own, so that no other holds a secret; it starts what the operator named as the source of one.
		{"os/exec", "*", []string{"driver/process", "internal/hostside", "bench/command.go", "internal/imagebuild/fetch.go",
			"internal/broker/start.go", "internal/brokerd/command.go", "internal/brokerd/acts.go"},
			"only a driver starts processes, so that the places where something could run outside a sandbox are few"},
		{"os", "StartProcess", nil, "see os/exec"},
		{"syscall", "Exec ForkExec StartProcess", nil, "see os/exec"},
		{"golang.org/x/sys/unix", "Exec", nil, "see os/exec"},
		{module + "/internal/rawfork", "*", []string{"internal/hostside", "internal/sandboxinit"}, "see os/exec"},
		// The battery's own doors on the loopback, which no sandbox may find; and the server's, a socket of this machine.
		{"net", "Listen*", []string{"attack/listeners.go", "cmd/glovebox/serve.go"}, "see the next"},
		// Sockets of this machine: the system logger's, the server's, and what may lie where a server wants to listen.
		{"net", "DialUnix", []string{"internal/trace/heads.go", "client/client.go", "cmd/glovebox/serve.go"},
			"what leaves a process leaves it in one place"},
		{"net", "Dial DialTimeout DialTCP DialUDP DialIP Dialer Resolver Lookup* DefaultResolver",
			[]string{"internal/upstream"}, "each address is judged as it is dialled, in one place: what dials elsewhere leads around it"},
		// The operator's own address for tree heads, which no program can reach or name; the door, and who asks it, on a socket
		// of this machine; a registry that the operator names to make an image of what it has; what passes the gateway, and
		// what makes tokens, whose connections are the dialler's.
		{"net/http", "Get Head Post* New* *Client *Transport Serve* Server Listen*",
			[]string{"internal/trace/webhook.go", "httpapi", "client", "internal/imagesource/pull.go", "internal/gateway", "internal/broker", "internal/brokerd"}, "see net"},
		{"golang.org/x/sys/unix", "Connect Bind", nil, "see net"},
		// One thread, for the moment of one call, to open the device of a network for a sandbox.
		{"golang.org/x/sys/unix", "Setns Unshare", []string{"internal/hostside/device.go"},
			"a Go process has many threads: namespaces come from the creation of a process"},
		// Init, for a program and on its socket, within the sandbox's own network.
		{"golang.org/x/sys/unix", "Listen", []string{"internal/sandboxinit/listen.go"}, "see net"},
		{"syscall", "Connect Bind Listen", nil, "see net"},
		{"os", "Getenv LookupEnv Environ ExpandEnv", []string{"cmd"},
			"the environment is read at the door, in one place, so that nothing below depends on who calls or leaks it"},
		{"time", "Sleep", []string{
			// Locks of other processes end without a word, so there is nothing to wait for; both loops have a deadline.
			"internal/store/turn.go",
			// A mutex has no wait with a deadline, and the writer that holds it may never come back.
			"cmd/glovebox/sink.go",
			// It waits for nothing: it bounds how much init works for a program that does nothing but ask.
			"internal/sandboxinit/listen.go",
		}, "a pause is too short on a busy machine and too long on an idle one, and cannot be cancelled: wait for the event"},
		{"log", "*", nil, "a logger is handed in (log/slog), so that who runs the code says where the lines go"},
		{"log/slog", "Default SetDefault Debug* Info* Warn* Error* Log LogAttrs", nil, "see log"},
		{"fmt", "Print*", nil, "standard output belongs to the program that was run; a command has the stream handed in"},
	}
}

// TestTidyBans: what the product's code does not do, and why.
func TestTidyBans(t *testing.T) {
	bans := codeBans()
	for _, b := range bans {
		used := map[string]bool{}
		for _, f := range goFiles(t) {
			if !f.product() {
				continue
			}
			allowed := slices.IndexFunc(b.only, func(place string) bool { return within(f.path, place) })
			for _, at := range uses(f, b.in, strings.Fields(b.names)) {
				if allowed < 0 {
					t.Errorf("%s: %s", at, b.why)
				} else {
					used[b.only[allowed]] = true
				}
			}
		}
		for _, place := range b.only {
			if !used[place] {
				t.Errorf("%s does not use %s %s any more: take the exception out of this test", place, b.in, b.names)
			}
		}
	}
}

// uses returns the places where f refers to one of names of an imported package.
func uses(f *goFile, imported string, names []string) []string {
	var found []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); !ok || x.Obj != nil || f.named[x.Name] != imported {
			return true // not a package, or another one
		}
		if slices.ContainsFunc(names, func(p string) bool { ok, _ := path.Match(p, sel.Sel.Name); return ok }) {
			found = append(found, f.at(sel.Pos())+": "+imported+"."+sel.Sel.Name)
		}
		return true
	})
	return found
}

// TestTidyState: no state in packages, and nothing that runs because a package was linked. Two engines in one process must
// not meet, a test must be able to run beside another, and what a program does must be seen from its main function.
// Variables of packages are tables that nothing changes: filled where they are declared, or once by sync.OnceValue.
func TestTidyState(t *testing.T) {
	vars := map[string]map[string]bool{} // by folder and name
	for _, f := range goFiles(t) {
		if !f.product() {
			continue
		}
		if vars[f.dir] == nil {
			vars[f.dir] = map[string]bool{}
		}
		if _, ok := f.named["."]; ok {
			t.Errorf("%s imports a package as \".\", which hides where names are from", f.path)
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init runs before main has a say", f.at(fn.Pos()))
			}
			for _, v := range packageVars(d) {
				for _, name := range v.Names {
					vars[f.dir][name.Name] = name.Name != "_"
				}
				if typ, ok := v.Type.(*ast.SelectorExpr); ok {
					if x, ok := typ.X.(*ast.Ident); ok && slices.Contains([]string{"sync", "sync/atomic"}, f.named[x.Name]) {
						t.Errorf("%s: a variable of a package of type %s.%s is there to be changed", f.at(v.Pos()), x.Name, typ.Sel.Name)
					}
				}
			}
		}
	}
	for _, f := range goFiles(t) {
		if f.product() {
			for _, at := range changes(f, vars[f.dir]) {
				t.Errorf("%s, a variable of the package, is changed", at)
			}
		}
	}
}

func packageVars(d ast.Decl) []*ast.ValueSpec {
	gen, ok := d.(*ast.GenDecl)
	if !ok || gen.Tok != token.VAR {
		return nil
	}
	var specs []*ast.ValueSpec
	for _, s := range gen.Specs {
		specs = append(specs, s.(*ast.ValueSpec))
	}
	return specs
}

// changes returns where f assigns to, or takes the address of, one of vars or a part of it.
func changes(f *goFile, vars map[string]bool) []string {
	top := map[*ast.ValueSpec]bool{}
	for _, d := range f.syntax.Decls {
		for _, v := range packageVars(d) {
			top[v] = true
		}
	}
	var found []string
	check := func(targets ...ast.Expr) {
		for _, target := range targets {
			id := root(target)
			if id == nil || !vars[id.Name] {
				continue
			}
			// An identifier without an object is declared in another file of the package.
			if spec, _ := declaration(id).(*ast.ValueSpec); id.Obj == nil || spec != nil && top[spec] {
				found = append(found, f.at(id.Pos())+": "+id.Name)
			}
		}
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				check(n.Lhs...)
			}
		case *ast.IncDecStmt:
			check(n.X)
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				check(n.Key, n.Value)
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				check(n.X)
			}
		case *ast.CallExpr:
			if fn, ok := n.Fun.(*ast.Ident); ok && fn.Obj == nil && (fn.Name == "delete" || fn.Name == "clear") {
				check(n.Args[0])
			}
		}
		return true
	})
	return found
}

func declaration(id *ast.Ident) any {
	if id.Obj == nil {
		return nil
	}
	return id.Obj.Decl
}

// root returns the variable that e is a part of, if it begins with one.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}
