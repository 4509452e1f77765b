package reconcile_test

import (
	"os"
	"testing"

	"github.com/flexd/flexd/internal/hosttest"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }
