package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

func TestTextLog(t *testing.T) {
	for _, row := range []struct {
		fields  logrus.Fields
		message string
		want    string
	}{
		{nil, "flexd is ready", "INFO   flexd is ready"},
		{logrus.Fields{"took": 12 * time.Millisecond, "step": "mkfs", "call": "c1", "volume": "vg0/a"}, "done", "INFO  volume=vg0/a call=c1 step=mkfs  done  took=12ms"},
		{logrus.Fields{"error": errors.New("a \"b\"\nc"), "empty": ""}, "one\nline\x1b[31m", `INFO   one line [31m  empty="" error="a \"b\"\nc"`},
	} {
		log, written := quiet(t)
		log.WithFields(row.fields).Info(row.message)
		_, line, _ := strings.Cut(strings.TrimSuffix(written.String(), "\n"), " ")
		if d := cmp.Diff(row.want, line); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}
