// Command flexdriver is the program that kubelet executes for every FlexVolume call: it takes argv, and
// prints one JSON object. Its code is in internal/flexvolume.
package main

import (
	"os"
	"strings"
	"unsafe"

	"github.com/flexd/flexd/internal/flexvolume"
)

func main() {
	os.Exit(flexvolume.Run(takeArgs(), os.Stdout, os.Getenv))
}

// takeArgs returns a copy of the arguments and overwrites the originals, all but the verb:
// every user can read them in /proc/PID/cmdline, they contain a pod's secrets, and a call
// may wait for minutes. On Linux the strings of os.Args are the process's argv memory.
func takeArgs() []string {
	args := make([]string, len(os.Args))
	for i, arg := range os.Args {
		args[i] = strings.Clone(arg)
		if i > 1 {
			clear(unsafe.Slice(unsafe.StringData(arg), len(arg)))
		}
	}
	return args
}
