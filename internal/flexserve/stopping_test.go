package flexserve

import (
	"context"
	"io"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/reconcile"
)

// stopped is a reconciler that has ended.
type stopped struct{}

func (stopped) Do(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, reconcile.ErrStopping
}
func (stopped) Explain(context.Context, []reconcile.Request) []reconcile.Prediction { return nil }
func (stopped) Lose(context.Context, string) error                                  { return nil }

// The reconciler may end before the driver socket does. Then a call gets no answer, which would be final to
// kubelet: flexdriver asks the next flexd.
func TestNoAnswerWhenStopping(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	f := &Frontend{Config: config.NewLive(config.Default()), Log: logrus.NewEntry(log), Boot: boottime.Now, Node: stopped{}}
	q := flexvolume.Request{V: flexvolume.Version, ID: "1", Verb: flexvolume.Unmount, Args: []string{"/var/lib/kubelet/pods/u/volumes/flexd~lvm/x"}, Started: int64(boottime.Now())}
	if a := f.Serve(t.Context(), q, 0); a != (flexvolume.Answer{}) {
		t.Errorf("kubelet gets a final answer: %+v", a)
	}
}
