package egress

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/net/publicsuffix"

	"glovebox"
)

// sharedHosts are hosts at which strangers have places of their own, or read what was sent: whoever may send there may send
// to them. Hosts that the Public Suffix List has as such are not repeated.
var sharedHosts = []string{
	"0x0.st", "api.telegram.org", "bitbucket.org", "cdn.discordapp.com", "cdn.jsdelivr.net", "codeberg.org",
	"content.dropboxapi.com", "controlc.com", "discord.com", "discordapp.com", "docs.google.com", "dpaste.org",
	"drive.google.com", "dropbox.com", "file.io", "firebasestorage.googleapis.com", "gist.github.com",
	"gist.githubusercontent.com", "github.com", "gitlab.com", "graph.microsoft.com", "hastebin.com",
	"hooks.slack.com", "httpbin.org", "huggingface.co", "ix.io", "mega.nz", "objects.githubusercontent.com",
	"paste.ee", "pastebin.com", "pipedream.net", "postman-echo.com", "raw.githubusercontent.com", "rentry.co",
	"requestbin.com", "script.google.com", "slack.com", "storage.googleapis.com", "termbin.com", "transfer.sh",
	"unpkg.com", "webhook.site", "wetransfer.com", "www.dropbox.com", "www.googleapis.com",
}

// Warnings are what an operator should know of rules that compile: of each, at most one sentence.
func Warnings(rules []glovebox.EgressRule) ([]string, error) {
	all, err := Compile(rules)
	if err != nil {
		return nil, err
	}
	var told []string
	for i := range all.rules {
		w := all.rules[i].warning(time.Now())
		if by := all.useless(&all.rules[i]); w == "" && by != "" {
			w = "it lets nothing pass: " + by + " denies it, or requests that nobody would see here"
		}
		if w != "" {
			told = append(told, all.rules[i].id+": "+w)
		}
	}
	return told, nil
}

// useless is the rule that denies all that a rule for one name allows; empty where something passes.
func (r *Rules) useless(g *rule) string {
	h, exact := g.pattern.Exact()
	if g.deny || !exact {
		return ""
	}
	ports := g.ports
	if len(ports) == 0 {
		ports = []uint16{443, 80}
	}
	by := ""
	for _, port := range ports {
		for _, p := range g.speaks(port) {
			v := r.Stream(h, port, p)
			if v.Allowed {
				return ""
			}
			by = v.Rule
		}
	}
	return by
}

func (r *rule) warning(now time.Time) string {
	blind := r.mode == SNI || slices.Contains(r.protocols, TLS)
	shared := r.pattern.shared()
	switch {
	case r.deny:
	case !r.live(now):
		return fmt.Sprintf("it ended on %s", r.said.Expires.Format(time.RFC3339))
	case shared != "" && len(r.paths) == 0:
		return fmt.Sprintf("anybody may have a place at %s, or read what is sent there; name paths, and methods", shared)
	case blind:
		return "it is judged by its server name alone: where hosts share addresses, another may answer"
	}
	return ""
}

// shared is a host of the pattern at which strangers have places; empty where none is known.
func (p Pattern) shared() string {
	if suffix, _ := publicsuffix.PublicSuffix(p.host.name); !p.below && suffix == p.host.name {
		return p.host.name
	}
	for _, name := range sharedHosts {
		if p.Match(Host{name}) {
			return name
		}
	}
	return ""
}
