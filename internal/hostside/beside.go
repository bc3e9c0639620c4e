package hostside

import (
	"fmt"
	"os"
	"path/filepath"
)

// InitKey is the key of the configuration that says where glovebox-init is.
const InitKey = "drivers.process.init"

// Missing says why a program of Glovebox's own is not to be had at path, and what mends it: key is that of the configuration
// that names another place than the folder of the running program, empty where none does.
func Missing(name, key, path string) Refusal {
	self, err := os.Executable()
	if err == nil && path == filepath.Join(filepath.Dir(self), name) {
		return Refusal{name + " is missing or not executable",
			"keep " + name + " in the folder of glovebox, both executable (make build puts them into bin)"}
	}
	if key == "" {
		return Refusal{fmt.Sprintf("%s is missing at %s, or not executable", name, path), "put it there (make build makes it)"}
	}
	return Refusal{fmt.Sprintf("%s is missing at %s, which %s names, or not executable", name, path, key),
		fmt.Sprintf("set %s in glovebox.yaml to where %s is (make build puts it into bin); without the key it is looked for "+
			"beside glovebox", key, name)}
}

// Followed is a path of the configuration without links: what is shown to a sandbox is opened without following any. Where
// nothing is it stays as it was written, for the text that says so; an empty one stays empty.
func Followed(path string) string {
	if path == "" {
		return ""
	}
	if plain, err := filepath.EvalSymlinks(path); err == nil {
		return plain
	}
	return path
}
