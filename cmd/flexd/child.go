package main

import (
	"fmt"
	"os"

	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/mount"
)

// childMain runs one operation on one volume in a process of its own: "flexd
// child OP JSON". It is started by flexd only, never by people.
func childMain(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "flexd child: started by flexd itself, with an operation and its argument")
		return 2
	}
	op, arg := args[0], []byte(args[1])
	for _, child := range []func(op string, arg []byte) (code int, ok bool){mount.Child, loopdev.Child, lvm.Child, lockspace.Child} {
		if code, ok := child(op, arg); ok {
			return code
		}
	}
	fmt.Fprintf(os.Stderr, "flexd child: no operation %q\n", op)
	return 2
}
