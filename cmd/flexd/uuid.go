package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/flexd/flexd/internal/loopdev"
)

func uuidCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "uuid",
		Usage:     "print the uuid of a loopdev volume's file, or give it a new one (root only)",
		ArgsUsage: "FILE",
		Description: "flexd uses only files with a uuid, and no two with the same one. --new makes a volume of a file that\n" +
			"something else created, or of a copy. It leaves the contents alone, and refuses a file that is in use.",
		Before: atMost(1),
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "new", Usage: "give the file a new uuid"}},
		Action: func(c *cli.Context) error {
			file := c.Args().First()
			if file == "" {
				return usage("uuid: name a file of a loopdev group")
			}
			if os.Geteuid() != 0 {
				return errors.New("uuid: only root can read or change it")
			}
			if !c.Bool("new") {
				uuid, err := loopdev.Marked(file)
				if err == nil && uuid == "" {
					err = fmt.Errorf("%s has no uuid: it is not a volume of flexd; flexd uuid --new %[1]s makes it one", file)
				}
				if err == nil {
					_, err = fmt.Fprintln(stdout, uuid)
				}
				return err
			}
			old, now, err := loopdev.Mark(file)
			if err != nil {
				return err
			}
			was := "it had none"
			if old != "" {
				was = "it was " + string(old)
			}
			_, err = fmt.Fprintf(stdout, "%s has the uuid %s now; %s.\n", file, now, was)
			return err
		},
	}
}
