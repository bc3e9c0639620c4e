package driver

import (
	"errors"
	"fmt"
	"strings"
)

// Check refuses a command that no driver can start as it says: without a program, with a zero byte, which would end a word
// before its end, or with a name of its code that is not that of one file. Each driver calls it first in Exec.
func (c *Command) Check() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return errors.New("execute: no program named")
	}
	for what, words := range map[string][]string{"an argument": c.Argv, "a variable": c.Env, "the folder": {c.Dir}} {
		for _, word := range words {
			if strings.ContainsRune(word, 0) {
				return fmt.Errorf("execute: %s has a zero byte", what)
			}
		}
	}
	name := c.CodeName
	if c.Code != nil && (name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00")) {
		return fmt.Errorf("execute: %.40q cannot be the name of a file of code", name)
	}
	return nil
}
