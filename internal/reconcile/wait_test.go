package reconcile

import (
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
)

// A mount that is committed at the longest deadline is answered before flexdriver gives up: otherwise kubelet
// treats it as failed.
func TestCommitGraceFits(t *testing.T) {
	const margin = 5 * time.Second // for the way of the answer
	longest := flexvolume.DefaultTimeout - commitGrace - margin
	if _, err := config.Parse("f", []byte("callDeadline: "+(longest+time.Second).String())); err == nil {
		t.Errorf("callDeadline may exceed %s, and its answer comes too late", longest)
	}
}
