package reconcile

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/status"
)

// Check audits every configured volume group anew, all in parallel, and reports where
// the metadata, the kernel's devices, the mount table and flexd's claims disagree. It
// changes nothing, and a group that hangs does not delay the others.
func (n *Node) Check(ctx context.Context) status.Check {
	check := status.Check{Node: n.Config.NodeName, Version: n.Version, Groups: []status.Group{}, Findings: []status.Finding{}}
	ctx, cancel := context.WithTimeoutCause(ctx, auditLimit, errAuditLimit)
	defer cancel()
	select {
	case <-n.ready:
	case <-ctx.Done():
	}
	groups := make([]status.Group, len(n.Config.VolumeGroups))
	var all sync.WaitGroup
	for i, vg := range n.Config.VolumeGroups {
		all.Go(func() { groups[i] = n.checkGroup(ctx, vg.Name, vg.Provider) })
	}
	all.Wait()
	n.orphans.look()
	check.Groups = append(check.Groups, groups...)
	found, _ := n.findings()
	check.Findings = append(check.Findings, found...)
	check.Verdict = check.Judge()
	return check
}

func (n *Node) checkGroup(ctx context.Context, vg, kind string) status.Group {
	g := status.Group{VG: vg, Provider: kind}
	s := n.audits[vg]
	if s == nil {
		g.Unknown = "its provider cannot list the whole group"
		return g
	}
	begun := time.Now()
	seen := s.audit(ctx, true)
	g.Seconds = time.Since(begun).Seconds()
	g.Volumes, g.Active = len(seen.Volumes), len(seen.Devices)
	g.Unknown = unknownReason(seen.Survey)
	return g
}

// unknownReason says what could not be read of a group.
func unknownReason(s join.Survey) string {
	var all []string
	if s.Metadata != "" {
		all = append(all, s.Metadata)
	}
	if s.Kernel != "" && s.Kernel != s.Metadata {
		all = append(all, s.Kernel)
	}
	for _, d := range s.Devices {
		if d.Unknown != "" {
			all = append(all, d.Unknown)
		}
	}
	return strings.Join(all, "; ")
}
