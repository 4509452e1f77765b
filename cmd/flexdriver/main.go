// Command flexdriver is what kubelet executes for every FlexVolume call: argv
// in, one JSON object out. All of it is in internal/flex.
package main

import (
	"os"

	"github.com/flexd/flexd/internal/flex"
)

func main() {
	os.Exit(flex.Run(os.Args, os.Stdout, os.Getenv))
}
