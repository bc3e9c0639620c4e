package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"glovebox"
)

// Line is a rule as a configuration has it, in one line of printable characters: {host: "api.example.com", methods: [GET]}.
func Line(r glovebox.EgressRule) string {
	var parts []string
	add := func(set bool, name, format string, value any) {
		if set {
			parts = append(parts, name+": "+fmt.Sprintf(format, value))
		}
	}
	quoted := func(all []string) string {
		list := make([]string, len(all))
		for i, s := range all {
			list[i] = strconv.QuoteToASCII(s)
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	words := func(all []string) string { return "[" + strings.Join(all, ", ") + "]" }
	ports := strings.ReplaceAll(fmt.Sprint(r.Ports), " ", ", ")
	add(r.ID != "", "id", "%s", strconv.QuoteToASCII(r.ID))
	add(true, "host", "%s", strconv.QuoteToASCII(r.Host))
	add(r.Deny, "deny", "%v", r.Deny)
	add(len(r.Ports) > 0, "ports", "%s", ports)
	add(len(r.Protocols) > 0, "protocols", "%s", words(r.Protocols))
	add(len(r.Methods) > 0, "methods", "%s", words(r.Methods))
	add(len(r.Paths) > 0, "paths", "%s", quoted(r.Paths))
	add(r.Mode != "", "mode", "%s", r.Mode)
	add(r.BodyLimit != 0, "body_limit", "%s", r.BodyLimit)
	add(r.WebSocket, "websocket", "%v", r.WebSocket)
	add(len(r.Push) > 0, "push", "%s", quoted(r.Push))
	add(r.AllowPrivate != nil, "allow_private", "%s", quoted(r.AllowPrivate))
	add(!r.Expires.IsZero(), "expires", "%q", r.Expires.UTC().Format(time.RFC3339))
	return "{" + strings.Join(parts, ", ") + "}"
}
