package main

import (
	"time"

	"glovebox"
	"glovebox/engine"
)

// builtInPool is what a server has ready where the configuration says nothing of it.
var builtInPool = engine.Pool{Spares: 32, Idle: 10 * time.Minute, Forks: true}

// The most that pool may say: each spare is a live process, and one that waited for a day is no use.
const (
	maxSpares = 1024
	maxIdle   = 24 * time.Hour
)

// poolKeys are pool: a word, or a mapping.
func poolKeys(p *engine.Pool) *key {
	return &key{
		value: func(v string) error {
			switch v {
			case "off":
				*p = engine.Pool{}
			case "fresh":
				p.Forks = false
			default:
				return glovebox.Errorf(glovebox.CodeInvalid,
					"write off, fresh (no forks), or {spares: 32, idle: 10m, forks: true}", "there is no pool %q", short(v))
			}
			return nil
		},
		keys: map[string]*key{
			"spares": scalar(func(v string) error {
				n, err := parseCount(v)
				if err == nil && (n < 1 || n > maxSpares) {
					err = glovebox.Errorf(glovebox.CodeInvalid, "write 1 to 1024, or pool: off for none",
						"%q is no number of spares", short(v))
				}
				p.Spares = int(n)
				return err
			}),
			"idle": scalar(func(v string) error {
				d, err := parseDuration(v)
				if err == nil && (d < time.Second || d > maxIdle) {
					err = glovebox.Errorf(glovebox.CodeInvalid, "write 1s to 24h", "%q is no time after which a spare goes", short(v))
				}
				p.Idle = d
				return err
			}),
			"forks": scalar(yesOrNo(&p.Forks)),
		},
	}
}
