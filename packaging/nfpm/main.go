// Command nfpm is nfpm with only its packagers for Debian and RPM: it makes the package FILE,
// a .deb or .rpm, from the configuration, whose paths are relative to the current directory.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

func main() {
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "Usage: nfpm CONFIGURATION FILE") }
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := pack(flag.Arg(0), flag.Arg(1)); err != nil {
		fmt.Fprintln(os.Stderr, "nfpm:", err)
		os.Exit(1)
	}
}

func pack(configuration, file string) error {
	format := strings.TrimPrefix(filepath.Ext(file), ".")
	config, err := nfpm.ParseFile(configuration)
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	info.Target = file
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := packager.Package(info, f); err != nil {
		return err
	}
	return f.Close()
}
