// Command flexdriver is what kubelet executes for every FlexVolume call: argv
// in, one JSON object out. All of it is in internal/flexvolume.
package main

import (
	"os"

	"github.com/flexd/flexd/internal/flexvolume"
)

func main() {
	os.Exit(flexvolume.Run(os.Args, os.Stdout, os.Getenv))
}
