package engine

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"glovebox"
	"glovebox/driver"
	"glovebox/internal/boot"
)

// codeNames are what code is called in its language unless a request names it.
var codeNames = map[string]string{"python": "main.py", "node": "main.js", "bash": "main.sh"}

// baseEnv is the environment besides what an image and a request set.
var baseEnv = map[string]string{
	"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "TMPDIR": "/tmp", "LANG": "C.UTF-8",
}

// command is what a request that policy accepted means inside the image, but for its input. The error is a *glovebox.Error.
func command(req glovebox.Request, image Image) (driver.Command, error) {
	cmd := driver.Command{Argv: req.Argv, Env: environment(image, req.Env), Dir: "/workspace"}
	if len(req.Argv) > 0 {
		return cmd, nil
	}
	lang := language(req)
	program, err := image.Interpreter(lang)
	if err != nil {
		return cmd, err
	}
	cmd.Code, cmd.CodeName = []byte(req.Code), req.CodeName
	if cmd.CodeName == "" {
		cmd.CodeName = codeNames[lang]
	}
	if lang == "node" {
		cmd.CodeName = nodeName(cmd.CodeName)
	}
	cmd.Argv = append(boot.Cold(lang, program, "/code/"+cmd.CodeName), req.Args...)
	return cmd, nil
}

// nodeName is a name that node takes for a program whatever the code was called: it goes by the suffix, and fails at one
// that it does not know.
func nodeName(name string) string {
	switch path.Ext(name) {
	case "", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts":
		return name
	}
	if len(name) > 255-len(".js") { // the most that a file name may have
		return codeNames["node"]
	}
	return name + ".js"
}

func language(req glovebox.Request) string {
	if req.Lang == "" && req.Code != "" {
		return "python"
	}
	return req.Lang
}

// environment is that of an image, with more variables: of a name that there is twice the last counts.
func environment(image Image, more ...map[string]string) []string {
	all := maps.Clone(baseEnv)
	maps.Copy(all, variables(image.Env()))
	for _, set := range more {
		maps.Copy(all, set)
	}
	env := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}

// variables are those of a list of NAME=VALUE.
func variables(list []string) map[string]string {
	set := make(map[string]string, len(list))
	for _, v := range list {
		name, value, _ := strings.Cut(v, "=")
		set[name] = value
	}
	return set
}

// Compiled when first needed: most starts of the program never do.
var noModule = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^ModuleNotFoundError: No module named '([A-Za-z_][A-Za-z0-9_.]{0,63})'\s*\z`)
})

// hint helps whoever wrote a program that ended with a plain exit but lacked something of the image. That it lacked it, and
// what that is called, is the program's word and said to be; so there is no advice to install it. A name that is no plain
// one is not repeated.
func hint(req glovebox.Request, v verdict, stderr glovebox.Untrusted, image Image) string {
	if language(req) != "python" || v.code == nil || *v.code != 1 || v.reason != "" {
		return ""
	}
	missing := noModule().FindStringSubmatch(string(stderr))
	if missing == nil {
		return ""
	}
	r := image.Report()
	packages := "no packages beyond the standard library"
	if len(r.Packages) > 0 {
		packages = strings.Join(r.Packages, ", ")
	}
	return fmt.Sprintf("the program says that it found no Python module %q; the image %s has %s, with %s", missing[1], r.Name,
		r.Languages["python"], packages)
}
