package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/play"
)

// A demo is the demonstration on one node.
type demo struct {
	*play.Play
	*host.Node
	ctx     context.Context
	ground  ground
	shared  sharing
	device  string // of the shared volume, from the answer to waitforattach
	scratch string // the volume of the killed call
}

// newDemo returns a demonstration for a terminal with that many columns; 0 = that of the output.
func newDemo(ctx context.Context, n *host.Node, g ground, s sharing, columns int) *demo {
	d := &demo{Node: n, ctx: ctx, ground: g, shared: s}
	d.Play = play.New(columns, d.short)
	return d
}

func (d *demo) end() {
	d.End()
	if d.shared.fixed != "" {
		d.Wrap("", "", "Left out: a volume that grows under its pods, since "+d.shared.fixed+".", "")
	}
}

// call calls the driver as kubelet does; the answer must have the status.
func (d *demo) call(status string, args ...string) host.Answer {
	d.Must(d.ctx.Err())
	started := time.Now()
	a, err := d.Call(d.ctx, args...)
	d.Must(err)
	d.Answered(a, time.Since(started), args)
	if a.Status != status {
		panic(play.Broken{Claim: fmt.Sprintf("%s answers %s, not %s", args[0], a.Status, status)})
	}
	return a
}

var kubernetesKey = regexp.MustCompile(`"kubernetes\.io/`)

// short removes details that make a line long.
func (d *demo) short(s string) string {
	s = strings.ReplaceAll(s, d.Root+"/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/", "KUBELET/plugins/…/mounts/")
	s = strings.ReplaceAll(s, d.Root+"/", "KUBELET/")
	s = strings.ReplaceAll(s, d.Dir+"/", "~/")
	s = strings.ReplaceAll(s, "/volumes/flexd~lvm/", "/…/")
	return kubernetesKey.ReplaceAllString(s, `"…/`)
}
