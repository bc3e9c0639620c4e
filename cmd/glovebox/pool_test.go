package main

import (
	"testing"
	"time"

	"glovebox/engine"
)

func TestPoolConfiguration(t *testing.T) {
	for text, want := range map[string]engine.Pool{
		"":                               builtInPool,
		"pool: {}\n":                     builtInPool,
		"pool: off\n":                    {},
		"pool: fresh\n":                  {Spares: 32, Idle: 10 * time.Minute},
		"pool: {forks: false}\n":         {Spares: 32, Idle: 10 * time.Minute},
		"pool: {forks: true}\n":          builtInPool,
		"pool: {spares: 5, idle: 90s}\n": {Spares: 5, Idle: 90 * time.Second, Forks: true},
		"pool:\n  spares: 5\n":           {Spares: 5, Idle: 10 * time.Minute, Forks: true},
	} {
		tl := newTool(t)
		tl.write(t, "g.yaml", text)
		if exit, _, errs := tl.run("run", "--config", "g.yaml", "-c", "1"); exit != 0 {
			t.Errorf("%q: %s", text, errs)
		} else if tl.settings.pool != want {
			t.Errorf("%q: %+v, want %+v", text, tl.settings.pool, want)
		}
	}
}

func TestBadPoolConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"word":      {"pool: none\n", []string{":1: pool", "off, fresh"}},
		"truth":     {"pool: false\n", []string{":1: pool", "off, fresh"}},
		"list":      {"pool: [fresh]\n", []string{":1: pool"}},
		"typo":      {"pool: {spare: 3}\n", []string{"pool.spare", "did you mean pool.spares?"}},
		"none":      {"pool: {spares: 0}\n", []string{"pool.spares", "pool: off"}},
		"many":      {"pool: {spares: 100000}\n", []string{"pool.spares"}},
		"no number": {"pool: {spares: some}\n", []string{"pool.spares"}},
		"idle":      {"pool: {idle: 10}\n", []string{"pool.idle", "say 10s"}},
		"no idle":   {"pool: {idle: 0s}\n", []string{"pool.idle", "1s to 24h"}},
		"forks":     {"pool: {forks: perhaps}\n", []string{"pool.forks", "true or false"}},
		"no value":  {"pool:\n", []string{"pool"}},
	} {
		t.Run(name, func(t *testing.T) { refusedConfig(t, c.text, 125, c.says) })
	}
}
