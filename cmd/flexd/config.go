package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/flexd/flexd/internal/config"
)

func checkConfig(stdout io.Writer, path string) error {
	c, err := loadConfig(path)
	if err != nil {
		return err
	}
	what := "no volume group, so flexd would set nothing up"
	if n := len(c.VolumeGroups); n == 1 {
		what = "1 volume group"
	} else if n > 1 {
		what = fmt.Sprintf("%d volume groups", n)
	}
	_, err = fmt.Fprintf(stdout, "%s: good; %s\n", path, what)
	return err
}

// loadConfig is config.Load with a way out for who has no file yet.
func loadConfig(path string) (*config.Config, error) {
	c, err := config.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration %s; `flexd config` prints one to begin with", path)
	}
	return c, err
}
