// Command gosec is gosec as an analyzer alone. Its own command also links the clients of
// services that suggest fixes: 50 modules.
package main

import (
	"github.com/securego/gosec/v2/goanalysis"
	"golang.org/x/tools/go/analysis/singlechecker"
)

func main() { singlechecker.Main(goanalysis.Analyzer) }
